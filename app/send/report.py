"""Tell a person what became of the events: tables of outcomes and of the rows they made."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.send.client import Sent
from app.send.queries import Made

MOST_ROWS = 20
DATE_CHARACTERS = 10
"""The least width of a column of times, so that a narrow terminal breaks them between date and time."""


def show_outcomes(console: Console, sent: Sequence[Sent]) -> None:
    """One line for each type, outcome and reason, in the order of the first of each."""
    table = Table(title="What the service answered")
    for column in ("event type", "status", "outcome", "reason"):
        table.add_column(column, overflow="fold")
    table.add_column("deliveries", justify="right")
    counted = Counter((one.type, one.status, one.outcome, one.reason) for one in sent)
    for (type_, status, outcome, reason), count in sorted(counted.items()):
        cells = (type_, str(status or ""), outcome, reason, str(count))
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)


def show_rows(console: Console, made: Made) -> None:
    """The subscriptions, the ledger's row of each event with its duplicates, and the messages owed to the outside."""
    subscriptions = [
        (
            row["external_id"],
            row["status"],
            row["plan"] or "",
            _moment(row["current_period_end"]),
            _moment(row["updated_at"]),
            str(row["version"]),
            "yes" if row["open"] else "no",
        )
        for row in made.subscriptions
    ]
    columns = ["external_id", "status", "plan", "current_period_end", "updated_at", "version", "open"]
    _show_some(console, "The rows they made: subscriptions (times in UTC)", columns, subscriptions)
    ledger = [
        (row["event_id"], row["type"], _moment(row["occurred_at"]), row["outcome"], str(row["duplicates"]))
        for row in made.ledger
    ]
    columns = ["event_id", "type", "occurred_at", "outcome", "duplicates"]
    _show_some(console, "The ledger: each event once, and how often it came again", columns, ledger)
    messages = ", ".join(f"{row['type']} {row['messages']}" for row in made.messages) or "none"
    console.print(f"Messages in the outbox: {messages}")
    console.print(f"Duplicates counted in the ledger: {sum(row['duplicates'] for row in made.ledger)}")


def _show_some(console: Console, title: str, names: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """A table of the first `MOST_ROWS` lines, and how many are left."""
    table = Table(title=title, pad_edge=False)  # a terminal of 80 characters has room for it all
    for name in names:
        table.add_column(name, overflow="fold", min_width=DATE_CHARACTERS if name.endswith(("_at", "_end")) else None)
    for line in lines[:MOST_ROWS]:
        table.add_row(*(escape(cell) for cell in line))
    console.print(table)
    if len(lines) > MOST_ROWS:
        console.print(f"… and {len(lines) - MOST_ROWS} more")


def _moment(time: datetime | None) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if time else ""
