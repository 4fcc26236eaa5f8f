"""Tell a person what became of the events: tables of outcomes and of the rows they made."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from app.send.client import Sent
from app.send.queries import Made

MOST_ROWS = 20


def show_outcomes(console: Console, sent: Sequence[Sent]) -> None:
    """One line for each type, outcome and reason, in the order of the first of each."""
    table = Table(title="What the service answered")
    for column in ("event type", "status", "outcome", "reason"):
        table.add_column(column, overflow="fold")
    table.add_column("deliveries", justify="right")
    counted = Counter((one.type, one.status, one.outcome, one.reason) for one in sent)
    for (type_, status, outcome, reason), count in sorted(counted.items()):
        table.add_row(type_, str(status), outcome, reason, str(count))
    console.print(table)


def show_rows(console: Console, made: Made) -> None:
    """The subscriptions, the messages owed to the outside, and the duplicates in the ledger."""
    table = Table(title="The rows they made: subscriptions")
    for column in ("external_id", "status", "plan", "amount", "updated_at", "version"):
        table.add_column(column, overflow="fold")
    for row in made.subscriptions[:MOST_ROWS]:
        amount = f"{row['quantity']} x {row['unit_amount']} {row['currency']}"
        status = f"{row['status']} (open)" if row["open"] else row["status"]
        updated = f"{row['updated_at']:%Y-%m-%d %H:%M:%S} UTC"
        table.add_row(row["external_id"], status, row["plan"] or "", amount, updated, str(row["version"]))
    console.print(table)
    if len(made.subscriptions) > MOST_ROWS:
        console.print(f"… and {len(made.subscriptions) - MOST_ROWS} more")
    messages = ", ".join(f"{row['type']} {row['messages']}" for row in made.messages) or "none"
    console.print(f"Messages in the outbox: {messages}")
    console.print(f"Duplicates counted in the ledger: {made.duplicates}")
