"""Connections and transactions: what is committed, what is rolled back, and what a broken connection leaves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text

from app.db.engine import CommitUnknown, ConnectionLost, Database, Timeouts
from app.errors import ConfigurationError, DatabaseUnavailable
from tests.held import held
from tests.proxy import Act, wire
from tests.service import Rows, free_port, until

TIMEOUTS = Timeouts.within(30)
FLOOR = "SELECT week FROM ledger_floor"
RAISE_FLOOR = "UPDATE ledger_floor SET week = week + 7"
PID = "SELECT pg_backend_pid() AS pid"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection, so that the same one is met again."""
    found = Database.connect(database_url, pool_size=1, patience_seconds=0.3)
    yield found
    await found.close()


async def pid(database: Database) -> int:
    async with database.begin(TIMEOUTS) as connection:
        (row,) = await connection.fetch(PID)
    found: int = row["pid"]
    return found


async def run(database: Database, *statements: str, timeouts: Timeouts = TIMEOUTS) -> None:
    """Run the statements in one transaction."""
    async with database.begin(timeouts) as connection:
        for statement in statements:
            await connection.execute(statement)


async def test_a_block_that_ends_is_committed_and_one_that_raises_is_rolled_back(
    database: Database, rows: Rows
) -> None:
    before = await rows.one(FLOOR)
    with pytest.raises(ZeroDivisionError):
        async with database.begin(TIMEOUTS) as connection:
            await connection.execute(RAISE_FLOOR)
            raise ZeroDivisionError
    assert await rows.one(FLOOR) == before
    await run(database, RAISE_FLOOR)
    assert (await rows.one(FLOOR) - before).days == 7


async def test_a_failed_statement_rolls_back_and_its_connection_is_used_again(database: Database, rows: Rows) -> None:
    first = await pid(database)
    before = await rows.one(FLOOR)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await run(database, RAISE_FLOOR, "SELECT 1 / 0")
    assert await rows.one(FLOOR) == before
    assert await pid(database) == first


async def test_a_value_that_cannot_be_sent_is_no_lost_connection(database: Database) -> None:
    first = await pid(database)
    with pytest.raises(asyncpg.DataError):
        async with database.begin(TIMEOUTS) as connection:
            await connection.fetch("SELECT $1::int", "no number")
    assert await pid(database) == first


async def test_limits_are_set_for_the_transaction_alone(database: Database) -> None:
    names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    shown = "SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    async with database.begin(Timeouts(lock=101, statement=202, idle=303)) as connection:
        (inside,) = await connection.fetch(shown)
    async with database.engine.connect() as pooled:
        outside = (await pooled.execute(text(shown))).one()
    assert [inside[name] for name in names] == ["101ms", "202ms", "303ms"]
    assert list(outside) == ["0", "0", "0"]


def test_limits_leave_room_for_every_halving_inside_the_deadline() -> None:
    assert Timeouts.within(3) == Timeouts(lock=300, statement=1800, idle=3000)
    assert Timeouts.within(0.05).lock == 10


async def test_a_lock_is_waited_for_no_longer_than_its_limit(database: Database, database_url: str) -> None:
    async with held(database_url, "LOCK TABLE ledger_floor"):
        with pytest.raises(asyncpg.LockNotAvailableError):
            await run(database, FLOOR, timeouts=Timeouts(lock=20, statement=5000, idle=5000))


async def test_a_statement_that_is_too_slow_is_ended_by_the_server(database: Database) -> None:
    with pytest.raises(asyncpg.QueryCanceledError):
        await run(database, "SELECT pg_sleep(10)", timeouts=Timeouts(lock=20, statement=20, idle=5000))


async def test_a_cancelled_transaction_leaves_a_connection_that_works(database: Database, rows: Rows) -> None:
    before = await rows.one(FLOOR)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run(database, RAISE_FLOOR, "SELECT pg_sleep(10)"), 0.1)
    assert await pid(database)
    assert await rows.one(FLOOR) == before


async def test_a_connection_that_the_server_ends_is_lost_and_replaced(database: Database) -> None:
    first = await pid(database)
    with pytest.raises((ConnectionLost, asyncpg.AdminShutdownError)):
        await run(database, "SELECT pg_terminate_backend(pg_backend_pid())", PID)
    assert await pid(database) != first


async def test_a_connection_that_ended_while_pooled_costs_one_transaction_at_most(
    database: Database, rows: Rows
) -> None:
    first = await pid(database)
    await rows.connection.execute("SELECT pg_terminate_backend($1)", first)

    async def again() -> bool:
        try:
            return await pid(database) != first
        except (DatabaseUnavailable, asyncpg.PostgresError):
            return False

    await until(again, 5)


async def test_a_full_pool_is_no_connection_after_the_patience_has_run_out(database: Database) -> None:
    async with database.begin(TIMEOUTS), asyncio.timeout(3):
        with pytest.raises(ConnectionLost):
            await pid(database)


@pytest.mark.parametrize("target", ["a port without a listener", "a database that is not there"])
async def test_a_server_or_database_that_is_not_there_is_no_connection(server: str, target: str) -> None:
    nobody = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    url = nobody if target == "a port without a listener" else server.replace("/postgres?", "/nothing?")
    database = Database.connect(url, pool_size=1)
    with pytest.raises(ConnectionLost):
        await pid(database)
    await database.close()


def test_an_address_that_cannot_be_read_is_refused_before_any_connection() -> None:
    with pytest.raises(ConfigurationError):
        Database.connect("mysql://root@somewhere/x", pool_size=1)


@pytest.mark.parametrize(("act", "stands"), [(Act.CUT_BEFORE, False), (Act.CUT_AFTER, True)])
async def test_a_commit_without_an_answer_is_unknown_whether_it_stands_or_not(
    database_url: str, rows: Rows, tmp_path: Path, act: Act, stands: bool
) -> None:
    before = await rows.one(FLOOR)
    async with wire(database_url, tmp_path) as cable:
        database = Database.connect(cable.url, pool_size=1)
        cable.arm(b"COMMIT", act)
        with pytest.raises(CommitUnknown):
            await run(database, RAISE_FLOOR)
        assert await pid(database)
        await database.close()
    assert (await rows.one(FLOOR) != before) is stands


async def test_a_wire_that_is_cut_inside_the_transaction_leaves_nothing(
    database_url: str, rows: Rows, tmp_path: Path
) -> None:
    before = await rows.one(FLOOR)
    async with wire(database_url, tmp_path) as cable:
        database = Database.connect(cable.url, pool_size=1)
        cable.arm(b"a marker", Act.CUT_AFTER)
        with pytest.raises(ConnectionLost):
            await run(database, RAISE_FLOOR, "SELECT 'a marker'")
        assert await pid(database)
        await database.close()
    assert await rows.one(FLOOR) == before
