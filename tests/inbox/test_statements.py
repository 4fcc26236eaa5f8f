"""A batch costs a fixed number of statements, whatever its size."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from app.db.engine import Connection, Database, Row, Timeouts
from tests.events import delivery, subscription
from tests.service import Rows, Served

FIXED = 15
"""BEGIN and COMMIT; two for the claim, one for thin twins, six for subscriptions, two to record, one to stage; and
one that deletes empty rows."""
TIMEOUTS = Timeouts.within(30)


@dataclass
class Counting:
    """A connection that counts what goes through it."""

    inner: Connection
    statements: list[str] = field(default_factory=list)

    async def fetch(self, query: str, *args: Any) -> Sequence[Row]:
        """Count and run."""
        self.statements.append(query)
        return await self.inner.fetch(query, *args)

    async def execute(self, query: str, *args: Any) -> str:
        """Count and run."""
        self.statements.append(query)
        return await self.inner.execute(query, *args)


class CountingDatabase(Database):
    """A database whose last transaction's statements were counted."""

    statements: int = 0

    @asynccontextmanager
    async def begin(self, timeouts: Timeouts) -> AsyncIterator[Connection]:
        """BEGIN and COMMIT count too."""
        async with super().begin(timeouts) as connection:
            counting = Counting(connection)
            yield counting
        self.statements = len(counting.statements) + 2


def mixed(number: int) -> dict[str, Any]:
    """One of eight kinds of delivery: new, tied, settled by a third event, stale, ended, thin, expired, ignored."""
    object_id = f"sub_{number % 5}"
    kinds = [
        subscription(f"evt_{number}", "active", at=number, before="past_due", object_id=object_id),
        subscription(f"evt_{number}", "past_due", at=2, before="active", object_id=object_id),
        subscription(f"evt_{number}", "unpaid", at=2, before="past_due", object_id=object_id),
        subscription(f"evt_{number}", "active", at=-500 - number, before="incomplete", object_id=object_id),
        subscription(f"evt_{number}", "canceled", at=5, kind="deleted", object_id=f"sub_gone_{number}"),
        {
            "id": f"evt_test_{number}",
            "object": "v2.core.event",
            "type": "v1.customer.subscription.updated",
            "livemode": False,
            "created": "2026-11-30T00:00:00.000Z",
            "snapshot_event": "evt_0",
        },
        {**subscription(f"evt_{number}", "active", object_id=object_id), "created": 1_500_000_000},
        {**subscription(f"evt_{number}", "active", object_id=object_id), "type": "customer.updated"},
    ]
    return kinds[number % len(kinds)]


@pytest.mark.parametrize("size", [1, 8, 64, 128])
async def test_the_number_of_statements_is_bounded_at_every_size(served: Served, rows: Rows, size: int) -> None:
    database = CountingDatabase(served.service.database.engine)
    receiver = replace(served.service.receiver, database=database)
    counts = []
    for start in range(3):
        batch = [delivery(mixed(start * size + number)) for number in range(size)]
        await receiver.receive([*batch, batch[0]], TIMEOUTS)
        counts.append(database.statements)
    assert max(counts) <= FIXED
    assert await rows.one("SELECT count(*) FROM inbox") == 3 * size


async def test_a_new_subscription_alone_costs_eight_statements(served: Served) -> None:
    database = CountingDatabase(served.service.database.engine)
    receiver = replace(served.service.receiver, database=database)
    await receiver.receive([delivery(subscription("evt_1", "active", kind="created"))], TIMEOUTS)
    assert database.statements == 8
