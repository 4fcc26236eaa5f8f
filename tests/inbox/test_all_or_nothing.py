"""Ledger, body, rows and messages commit together: held, failed, cut or killed at any step, nothing is half done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.events import SECRET, subscription
from tests.proxy import Act, wire
from tests.service import Rows, Served, post, process, serving, until

EVENT = subscription("evt_1", "active", kind="created")
APPLIED = {"processed_events": 1, "inbox": 1, "subscriptions": 1, "outbox": 2}
NOTHING = dict.fromkeys(APPLIED, 0)

HOLDS = {
    "the claim": "INSERT INTO processed_events"
    " (namespace, event_id, week, type, occurred_at, received_at, payload_hash, outcome)"
    " SELECT 'stripe:self:test', 'evt_1', date_trunc('week', to_timestamp({created}) AT TIME ZONE 'UTC')::date,"
    " 'x', now(), now(), '', 'applied'",
    "making the row": "INSERT INTO subscriptions (namespace, external_id) VALUES ('stripe:self:test', 'sub_1')",
    "locking the row": "LOCK TABLE subscriptions IN EXCLUSIVE MODE",
    "recording the body": "LOCK TABLE inbox IN SHARE MODE",
    "staging messages": "LOCK TABLE outbox IN SHARE MODE",
}
"""What another transaction does so that the path waits at each of its steps."""


def patient_source(folder: Path) -> dict[str, str]:
    """The source `stripe` with a deadline that outlasts what a test does while it waits."""
    path = folder / "sources.toml"
    path.write_text(
        f'[[sources]]\nname = "stripe"\nprovider = "stripe"\nsecrets = ["{SECRET.decode()}"]\ndeadline_seconds = 60\n'
    )
    return {"SOURCES_FILE": str(path), "STRIPE_WEBHOOK_SECRETS": ""}


@asynccontextmanager
async def held(database_url: str, step: str) -> AsyncIterator[None]:
    """Hold one step of the path by another transaction, which rolls back at the end."""
    connection = await asyncpg.connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(HOLDS[step].format(created=EVENT["created"]))
    try:
        yield
    finally:
        await transaction.rollback()
        await connection.close()


async def waiting(rows: Rows) -> bool:
    """Whether a connection of the service waits for a lock."""
    return bool(
        await rows.one(
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


async def only_ours(rows: Rows) -> bool:
    """Whether all connections but the observer's have gone."""
    return bool(await rows.one("SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()"))


@pytest.mark.parametrize("step", HOLDS)
async def test_a_kill_while_a_step_waits_leaves_nothing_and_the_resend_is_applied_once(
    database_url: str, rows: Rows, step: str, tmp_path: Path
) -> None:
    environment = patient_source(tmp_path)
    async with httpx.AsyncClient(timeout=30) as client:
        async with held(database_url, step), process(database_url, environment=environment) as killed:
            lost = asyncio.create_task(post(client, EVENT, f"{killed.url}/webhooks/stripe"))
            await until(lambda: waiting(rows))
            killed.kill()
            with pytest.raises(httpx.TransportError):
                await lost
        await until(lambda: only_ours(rows))
        assert await rows.counts() == NOTHING
        async with process(database_url, environment=environment) as restarted:
            answers = [await post(client, EVENT, f"{restarted.url}/webhooks/stripe") for _ in range(2)]
    assert [answer.json()["outcome"] for answer in answers] == ["applied", "duplicate"]
    assert await rows.counts() == APPLIED


async def test_a_kill_between_commit_and_answer_loses_nothing_and_the_resend_is_a_duplicate(
    database_url: str, rows: Rows, tmp_path: Path
) -> None:
    environment = patient_source(tmp_path)
    async with httpx.AsyncClient(timeout=30) as client, wire(database_url, tmp_path) as between:
        async with process(between.url, environment=environment) as killed:
            between.arm(b"COMMIT", Act.HOLD_ANSWER, after=b"INSERT INTO inbox")
            lost = asyncio.create_task(post(client, EVENT, f"{killed.url}/webhooks/stripe"))
            await between.reached.wait()

            async def committed() -> bool:
                return await rows.counts() == APPLIED

            await until(committed)
            assert not lost.done()
            killed.kill()
            with pytest.raises(httpx.TransportError):
                await lost
        async with process(database_url, environment=environment) as restarted:
            answer = await post(client, EVENT, f"{restarted.url}/webhooks/stripe")
    assert answer.json()["outcome"] == "duplicate"
    assert await rows.counts() == APPLIED


@pytest.mark.parametrize("table", ["processed_events", "subscriptions", "inbox", "outbox"])
async def test_a_failure_at_any_table_leaves_nothing_and_says_503(served: Served, rows: Rows, table: str) -> None:
    await rows.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END $$;"
        f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    answer = await served.post(EVENT)
    assert answer.status_code == 503
    assert answer.json()["code"] == "database_unavailable"
    assert answer.headers["retry-after"].isdigit()
    assert await rows.counts() == NOTHING
    await rows.connection.execute(f"DROP TRIGGER refuse ON {table}")
    assert (await served.post(EVENT)).json()["outcome"] == "applied"
    assert await rows.counts() == APPLIED


@pytest.mark.parametrize("act", [Act.CUT_AFTER, Act.CUT_BEFORE])
async def test_a_connection_lost_at_commit_is_claimed_again_and_applied_once(
    database_url: str, rows: Rows, tmp_path: Path, act: Act
) -> None:
    async with wire(database_url, tmp_path) as between, serving(between.url) as served:
        between.arm(b"COMMIT", act, after=b"INSERT INTO inbox")
        answer = await served.post(EVENT)
        assert between.reached.is_set()
    assert answer.json()["outcome"] == "applied"
    assert await rows.counts() == APPLIED
    assert await rows.one("SELECT duplicates FROM processed_events") == 0


async def test_the_service_heals_by_itself_when_every_connection_was_cut(served: Served, rows: Rows) -> None:
    await asyncio.gather(
        *(served.post(subscription(f"evt_other_{n}", "active", object_id=f"sub_other_{n}")) for n in range(8))
    )
    await rows.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert (await served.post(EVENT)).json()["outcome"] == "applied"


async def test_a_database_that_is_read_only_gets_503_and_heals_without_a_restart(served: Served, rows: Rows) -> None:
    name = await rows.one("SELECT current_database()")
    await rows.connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    await served.service.database.engine.dispose()
    assert (await served.post(EVENT)).status_code == 503
    await rows.connection.execute("SET default_transaction_read_only = off")
    await rows.connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = off')
    await served.service.database.engine.dispose()
    assert (await served.post(EVENT)).json()["outcome"] == "applied"


async def test_a_stop_finishes_what_was_accepted(database_url: str, rows: Rows, tmp_path: Path) -> None:
    async with (
        httpx.AsyncClient(timeout=30) as client,
        process(database_url, environment=patient_source(tmp_path)) as stopped,
    ):
        async with held(database_url, "locking the row"):
            waits = asyncio.create_task(post(client, EVENT, f"{stopped.url}/webhooks/stripe"))
            await until(lambda: waiting(rows))
            stopped.popen.terminate()
        answer = await waits
    with suppress(TimeoutError):
        assert stopped.popen.returncode is not None
    assert answer.json()["outcome"] == "applied"
    assert await rows.counts() == APPLIED
