"""Partitions of the ledger (by week) and the inbox (by day): made ahead, and on demand, never stalling a writer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from app.db.engine import Connection, Database, Timeouts

_LOCK = 0x6F6E6365_00000001
"""The advisory lock under which partitions are made, one process at a time."""
_TIMEOUTS = Timeouts(lock=2000, statement=10_000, idle=10_000)

WEEKS_AHEAD = 2
DAYS_AHEAD = 3


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    column: str
    span: timedelta


_LEDGER = _Table("processed_events", "week", timedelta(days=7))
_INBOX = _Table("inbox", "arrived_on", timedelta(days=1))


async def ensure(database: Database, *, weeks: Iterable[date], days: Iterable[date]) -> int:
    """Make the partitions that are missing and return how many; weeks below the ledger's floor are left out.

    Runs on a connection of its own: the caller must have rolled back. Each is built apart (LIKE) and attached, which
    waits for no open writer of the parent; `CREATE … PARTITION OF` would.
    """
    async with database.begin(_TIMEOUTS) as connection:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        (floor,) = await connection.fetch("SELECT week FROM ledger_floor")
        wanted = [(_LEDGER, week) for week in sorted(set(weeks)) if week >= floor["week"]]
        wanted += [(_INBOX, day) for day in sorted(set(days))]
        missing = await _missing(connection, wanted)
        for table, start in missing:
            await _make(connection, table, start)
    return len(missing)


async def ensure_ahead(database: Database, today: date) -> int:
    """Make the partitions of today and the next days and weeks, and of all weeks down to the floor."""
    async with database.begin(_TIMEOUTS) as connection:
        (floor,) = await connection.fetch("SELECT week FROM ledger_floor")
    monday = today - timedelta(days=today.weekday())
    last = monday + timedelta(weeks=WEEKS_AHEAD)
    weeks = [floor["week"] + timedelta(weeks=n) for n in range((last - floor["week"]).days // 7 + 1)]
    days = [today + timedelta(days=n) for n in range(-1, DAYS_AHEAD + 1)]
    return await ensure(database, weeks=weeks, days=days)


async def _missing(connection: Connection, wanted: Sequence[tuple[_Table, date]]) -> list[tuple[_Table, date]]:
    names = [_name(table, start) for table, start in wanted]
    known = await connection.fetch("SELECT name FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NULL", names)
    absent = {row["name"] for row in known}
    return [pair for pair, name in zip(wanted, names, strict=True) if name in absent]


async def _make(connection: Connection, table: _Table, start: date) -> None:
    name, end = _name(table, start), start + table.span
    bounds = f"{table.column} >= DATE '{start}' AND {table.column} < DATE '{end}'"
    await connection.execute(
        f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL, CONSTRAINT {name}_bounds CHECK ({bounds}));"
        f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES FROM ('{start}') TO ('{end}');"
        f"ALTER TABLE {name} DROP CONSTRAINT {name}_bounds"
    )


def _name(table: _Table, start: date) -> str:
    return f"{table.name}_{start:%Y%m%d}"
