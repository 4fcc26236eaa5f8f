"""Locks that another transaction holds, so that the service waits where a test wants it to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.service import Rows

EMPTY_ROWS = (
    "INSERT INTO subscriptions (namespace, external_id) VALUES"
    " ('stripe:self:test', 'sub_locked'), ('stripe:self:test', 'sub_locked_2')"
)
"""A transaction that holds it makes every event of these two wait, and only those."""


@asynccontextmanager
async def held(database_url: str, *statements: str) -> AsyncIterator[None]:
    """Run the statements in a transaction that stays open for the block and rolls back after it."""
    connection = await asyncpg.connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        for statement in statements:
            await connection.execute(statement)
        yield
    finally:
        await transaction.rollback()
        await connection.close()


async def waiting(rows: Rows, connections: int = 1) -> bool:
    """Whether that many connections wait for a lock in the test's database."""
    found: int = await rows.one(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return found == connections
