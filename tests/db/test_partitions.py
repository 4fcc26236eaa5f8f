"""Partitions are made ahead and on demand, once, and never stall a writer."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date, timedelta

import pytest

from app.clock import monday_of, utc_now
from app.db import partitions
from app.db.engine import Database, Timeouts
from tests.held import held, waiting
from tests.service import Rows, until

DAY, WEEK = timedelta(days=1), timedelta(weeks=1)
FAR = date(2040, 1, 2)
"""A Monday of which no partition is there."""

WRITING = (
    "INSERT INTO inbox (arrived_on, namespace, event_id, source, type, occurred_at, received_at, secret_label, headers,"
    " body, outcome, reason)"
    f" SELECT date '{utc_now().date()}', 'n', 'e', 's', 't', now(), now(), 'l', '{{}}', '', 'applied', 'newer'"
)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    found = Database.connect(database_url, pool_size=4)
    yield found
    await found.close()


async def names(rows: Rows, parent: str) -> list[str]:
    found: list[str] = await rows.one(
        "SELECT array_agg(inhrelid::regclass::text ORDER BY 1) FROM pg_inherits WHERE inhparent = $1::text::regclass",
        parent,
    )
    return found


async def test_ahead_means_from_the_floor_to_two_weeks_on_and_from_yesterday_to_three_days_on(
    rows: Rows, database: Database
) -> None:
    now = utc_now()
    floor = await rows.one("SELECT week FROM ledger_floor")
    await partitions.ensure_ahead(database, now.date())
    last = monday_of(now) + 2 * WEEK
    weeks = [floor + n * WEEK for n in range((last - floor).days // 7 + 1)]
    days = [now.date() + n * DAY for n in range(-1, 4)]
    assert set(await names(rows, "processed_events")) >= {f"processed_events_{week:%Y%m%d}" for week in weeks}
    assert "processed_events_forever" in await names(rows, "processed_events")
    assert set(await names(rows, "inbox")) >= {f"inbox_{day:%Y%m%d}" for day in days}
    assert await partitions.ensure_ahead(database, now.date()) == 0


async def test_a_partition_that_was_made_on_demand_takes_the_rows_of_its_span_and_no_others(
    rows: Rows, database: Database
) -> None:
    assert await partitions.ensure(database, weeks=[FAR], days=[FAR, FAR, FAR + DAY]) == 3
    made = ["processed_events_20400102", "inbox_20400102", "inbox_20400103"]
    bounds = await rows.all(
        "SELECT relname, pg_get_expr(relpartbound, oid) AS bounds FROM pg_class WHERE relname = ANY($1)", made
    )
    assert {row["relname"]: row["bounds"] for row in bounds} == {
        "processed_events_20400102": "FOR VALUES FROM ('2040-01-02') TO ('2040-01-09')",
        "inbox_20400102": "FOR VALUES FROM ('2040-01-02') TO ('2040-01-03')",
        "inbox_20400103": "FOR VALUES FROM ('2040-01-03') TO ('2040-01-04')",
    }
    parents = await rows.all("SELECT conname FROM pg_constraint WHERE conrelid = 'processed_events'::regclass")
    checks = await rows.all("SELECT conname FROM pg_constraint WHERE conrelid = 'processed_events_20400102'::regclass")
    assert len(checks) == len(parents)
    assert not any("bounds" in row["conname"] for row in checks)
    indexed = "SELECT count(*) FROM pg_index WHERE indrelid = $1::text::regclass"
    assert await rows.one(indexed, "inbox_20400102") == await rows.one(indexed, "inbox")


async def test_below_the_floor_none_is_made(rows: Rows, database: Database) -> None:
    floor = await rows.one("SELECT week FROM ledger_floor")
    before = await names(rows, "processed_events")
    assert await partitions.ensure(database, weeks=[floor - WEEK, floor], days=[]) == 0
    await rows.connection.execute("UPDATE ledger_floor SET week = '2040-01-09'")
    assert await partitions.ensure(database, weeks=[FAR, FAR + WEEK], days=[]) == 1
    assert set(await names(rows, "processed_events")) - set(before) == {"processed_events_20400109"}


async def test_four_that_make_the_same_at_once_make_it_once(rows: Rows, database: Database) -> None:
    makers = [partitions.ensure(database, weeks=[FAR], days=[FAR]) for _ in range(4)]
    assert sorted(await asyncio.gather(*makers)) == [0, 0, 0, 2]


async def test_making_one_waits_for_no_writer_and_no_writer_waits_for_it(
    rows: Rows, database: Database, database_url: str
) -> None:
    async with held(database_url, WRITING), asyncio.timeout(5):
        assert await partitions.ensure(database, weeks=[FAR], days=[FAR]) == 2
    async with rows.connection.transaction():
        await partitions._make(rows.connection, partitions._INBOX, FAR + WEEK)
        async with asyncio.timeout(5), database.begin(Timeouts.within(5)) as connection:
            await connection.execute(WRITING)


async def test_makers_go_one_after_the_other(rows: Rows, database: Database, database_url: str) -> None:
    async with held(database_url, f"SELECT pg_advisory_xact_lock({partitions._LOCK})"):
        making = asyncio.create_task(partitions.ensure(database, weeks=[], days=[FAR]))
        await until(lambda: waiting(rows))
        assert "inbox_20400102" not in await names(rows, "inbox")
    assert await making == 1
