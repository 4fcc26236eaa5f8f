"""What the events that were sent became, read from the service's database."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.db.engine import Database, Row, Timeouts

_READ = Timeouts(lock=1000, statement=5000, idle=5000)


@dataclass(frozen=True, slots=True)
class Made:
    """Rows that events made: subscriptions, the ledger's row of each event, and messages by type."""

    subscriptions: Sequence[Row]
    messages: Sequence[Row]
    ledger: Sequence[Row]


async def made_by(database: Database, event_ids: Sequence[str]) -> Made:
    """Follow event ids through the inbox to their rows and messages.

    Raises:
        DatabaseUnavailable: the database cannot be reached.
        asyncpg.PostgresError: it is not this service's, or too busy to answer in time.
    """
    async with database.begin(_READ) as connection:
        subscriptions = await connection.fetch(
            """
            SELECT s.external_id, s.namespace, s.status, s.plan, s.current_period_end, s.updated_at, s.version, s.open
            FROM subscriptions s
            WHERE (s.namespace, s.external_id) IN (
              SELECT namespace, object_id FROM inbox WHERE event_id = ANY($1::text[]))
            ORDER BY s.id
            """,
            list(event_ids),
        )
        subjects = [f"subscription/{row['namespace']}/{row['external_id']}" for row in subscriptions]
        messages = await connection.fetch(
            "SELECT type, count(*) AS messages FROM outbox WHERE subject = ANY($1::text[]) GROUP BY type ORDER BY type",
            subjects,
        )
        ledger = await connection.fetch(
            """
            SELECT event_id, type, occurred_at, outcome, duplicates
            FROM processed_events
            WHERE event_id = ANY($1::text[])
            ORDER BY occurred_at, event_id
            """,
            list(event_ids),
        )
    return Made(subscriptions, messages, ledger)
