"""Group commit: who shares a transaction, and that a fault of one delivery, a lock or the server costs no other."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from app.clock import utc_now
from app.db.engine import Timeouts
from app.errors import DatabaseUnavailable, Overloaded, ShuttingDown
from app.inbox.batch import MAX_BYTES, MAX_EVENTS, Batcher
from app.inbox.receive import Answer
from app.main import Service, build
from app.outcomes import Outcome, Reason
from app.providers.base import Delivery
from app.settings import Settings
from tests.events import SECRET, SOURCE, delivery, subscription
from tests.held import EMPTY_ROWS, held, waiting
from tests.proxy import Act, wire
from tests.service import Rows, Served, serving, until

PATIENT = replace(SOURCE, deadline_seconds=60.0, max_body_bytes=50_000_000)
"""Its locks are waited for longer than any test here holds one."""
HASTY = replace(SOURCE, deadline_seconds=0.5)
"""Its locks are waited for 50 ms."""


@dataclass(slots=True)
class Batching:
    """A batcher on a real database; `sizes` are those of the transactions that were begun."""

    service: Service
    queue_max_events: int = 10_000
    sizes: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    prepared: int = 0
    released: int = 0
    batcher: Batcher = field(init=False)

    def __post_init__(self) -> None:
        self.batcher = Batcher(self._receive, self._make_partitions, queue_max_events=self.queue_max_events)

    async def _receive(
        self, deliveries: Sequence[Delivery], timeouts: Timeouts, *, refused: bool = False, again: bool = False
    ) -> list[Answer]:
        self.sizes.append(len(deliveries))
        self.bytes.append(sum(len(one.body) for one in deliveries))
        return await self.service.receiver.receive(deliveries, timeouts, refused=refused, again=again)

    async def _make_partitions(self, deliveries: Sequence[Delivery]) -> None:
        self.prepared += 1
        await self.service.batcher._make_partitions(deliveries)

    def _release(self) -> None:
        self.released += 1

    def submit(self, given: Delivery, *, within: float = 60.0, kept: bool = False) -> asyncio.Future[Answer]:
        deadline = asyncio.get_running_loop().time() + within
        return self.batcher.submit(given, deadline=deadline, kept=kept, released=self._release)

    async def all_lanes_wait(self, rows: Rows) -> list[asyncio.Future[Answer]]:
        """Have both lanes wait for a lock of `EMPTY_ROWS`."""
        futures: list[asyncio.Future[Answer]] = []
        for lane, locked in enumerate(("sub_locked", "sub_locked_2"), start=1):
            futures.append(self.submit(event(f"evt_lane_{lane}", object_id=locked)))
            await until(lambda lane=lane: waiting(rows, lane))  # type: ignore[misc]
        return futures


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    """The parts of one process, of which nothing runs: no job makes partitions behind a test's back."""
    found = build(
        Settings(
            _env_file=None, database_url=SecretStr(database_url), stripe_webhook_secrets=(SecretStr(SECRET.decode()),)
        )
    )
    yield found
    await found.database.close()


@pytest.fixture
async def batching(service: Service) -> AsyncIterator[Batching]:
    found = Batching(service)
    found.batcher.start()
    yield found
    await found.batcher.stop()


def event(event_id: str, *, padding: int = 0, source: Any = PATIENT, **changes: Any) -> Delivery:
    changes.setdefault("object_id", f"sub_of_{event_id}")
    return delivery(subscription(event_id, "active", padding="x" * padding, **changes), source=source)


async def outcomes(futures: Sequence[asyncio.Future[Answer]]) -> list[str]:
    """What became of each: its outcome, or the code of its error."""
    answers = await asyncio.gather(*futures, return_exceptions=True)
    return [answer.outcome if isinstance(answer, Answer) else getattr(answer, "code", "?") for answer in answers]


# --- who shares a transaction


async def test_a_delivery_that_finds_the_lanes_idle_goes_alone(batching: Batching) -> None:
    for number in range(5):
        assert (await batching.submit(event(f"evt_{number}"))).outcome == Outcome.APPLIED
    assert batching.sizes == [1] * 5


async def test_deliveries_that_come_while_transactions_run_share_the_next(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        gathered = [batching.submit(event(f"evt_{number}")) for number in range(20)]
        assert batching.batcher.queued == 20
    assert set(await outcomes([*first, *gathered])) == {"applied"}
    assert batching.sizes == [1, 1, 20]
    assert batching.released == 22
    assert await rows.one("SELECT count(DISTINCT xmin::text) FROM inbox") == 3


async def test_a_transaction_takes_no_more_than_its_share(batching: Batching, database_url: str, rows: Rows) -> None:
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        many = [batching.submit(event(f"evt_{number}")) for number in range(300)]
    assert set(await outcomes([*first, *many])) == {"applied"}
    assert batching.sizes == [1, 1, MAX_EVENTS, MAX_EVENTS, 300 - 2 * MAX_EVENTS]


async def test_a_transaction_takes_no_more_bytes_than_its_share(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        large = [batching.submit(event(f"evt_{number}", padding=MAX_BYTES // 5)) for number in range(9)]
    assert set(await outcomes([*first, *large])) == {"applied"}
    assert batching.sizes == [1, 1, 4, 4, 1]
    assert max(batching.bytes) <= MAX_BYTES


async def test_a_very_large_body_waits_on_a_lane_of_its_own_and_delays_nobody(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    async with held(database_url, EMPTY_ROWS):
        huge = [
            batching.submit(
                event(f"evt_huge_{number}", padding=MAX_BYTES, at=number, before="x", object_id="sub_locked")
            )
            for number in range(2)
        ]
        await until(lambda: waiting(rows))
        small = [batching.submit(event(f"evt_{number}")) for number in range(20)]
        assert set(await outcomes(small)) == {"applied"}
        assert not any(future.done() for future in huge)
    assert await outcomes(huge) == ["applied", "applied"]
    assert [size for size, total in zip(batching.sizes, batching.bytes, strict=True) if total > MAX_BYTES] == [1, 1]


async def test_one_event_twice_in_a_batch_is_one_effect_and_a_duplicate(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        same = [batching.submit(event("evt_1")) for _ in range(3)]
    assert await outcomes([*first, *same]) == ["applied", "applied", "applied", "duplicate", "duplicate"]
    assert batching.sizes == [1, 1, 3]
    assert await rows.one("SELECT duplicates FROM processed_events WHERE event_id = 'evt_1'") == 2


# --- faults of one delivery


async def test_an_event_whose_data_postgresql_refuses_is_parked_and_its_neighbours_are_applied(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    await rows.connection.execute(
        "ALTER TABLE subscriptions ADD CONSTRAINT refused CHECK (external_id NOT LIKE 'sub_refused%' OR version = 0)"
    )
    refused = {3, 11}
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        futures = [
            batching.submit(
                event(f"evt_{number}", object_id=f"sub_{'refused' if number in refused else 'fine'}{number}")
            )
            for number in range(16)
        ]
    assert await outcomes(first) == ["applied", "applied"]
    assert await outcomes(futures) == ["parked" if number in refused else "applied" for number in range(16)]
    assert (await futures[3]).reason == Reason.DATA_REFUSED
    assert await rows.all("SELECT outcome, count(*) FROM processed_events GROUP BY 1 ORDER BY 1") == [
        {"outcome": "applied", "count": 16},
        {"outcome": "parked", "count": 2},
    ]
    assert await rows.one("SELECT count(*) FROM subscriptions WHERE external_id LIKE 'sub_refused%'") == 0


@pytest.mark.parametrize("change", [{"type": "\x00"}, {"api_version": "\ud800"}])
async def test_an_event_that_cannot_even_be_recorded_is_refused_and_its_neighbours_are_applied(
    batching: Batching, database_url: str, rows: Rows, change: dict[str, str]
) -> None:
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        before = batching.submit(event("evt_1"))
        poison = batching.submit(replace(event("evt_2"), **change))  # type: ignore[arg-type]
        after = batching.submit(event("evt_3"))
    assert await outcomes([*first, before, poison, after]) == ["applied"] * 3 + ["database_unavailable", "applied"]
    assert await rows.one("SELECT count(*) FROM processed_events WHERE event_id = 'evt_2'") == 0
    assert batching.released == 5


async def test_an_event_on_which_our_own_code_fails_is_parked_and_its_neighbours_are_applied(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    unread = replace(event("evt_2"), event={"data": 7})
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        futures = [batching.submit(each) for each in (event("evt_1"), unread, event("evt_3"))]
    assert await outcomes([*first, *futures]) == ["applied"] * 3 + ["parked", "applied"]
    assert (await futures[1]).reason == Reason.PROJECTION_FAILED


async def test_a_lock_on_one_row_refuses_its_own_delivery_and_applies_its_neighbours_inside_the_deadline(
    served: Served, database_url: str, rows: Rows
) -> None:
    async with held(database_url, EMPTY_ROWS):
        sends = [
            served.post(
                subscription(f"evt_{number}", "active", object_id="sub_locked" if number == 20 else f"sub_{number}")
            )
            for number in range(30)
        ]
        async with asyncio.timeout(3.5):
            answers = await asyncio.gather(*sends)
    assert [number for number, answer in enumerate(answers) if answer.status_code != 200] == [20]
    assert answers[20].status_code == 503
    assert await rows.one("SELECT count(*) FROM subscriptions") == 29


# --- faults of the transaction


async def test_a_missing_partition_is_made_and_the_batch_runs_again(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    today = utc_now().date()
    partition = f"inbox_{today:%Y%m%d}"
    await rows.connection.execute(f"DROP TABLE {partition}")
    assert (await batching.submit(event("evt_1"))).outcome == Outcome.APPLIED
    assert batching.prepared == 1
    assert await rows.one(f"SELECT count(*) FROM {partition}") == 1


async def test_the_ledgers_partition_of_a_late_event_is_made_too(batching: Batching, rows: Rows) -> None:
    late = event("evt_1", at=-20 * 86_400)
    await rows.connection.execute(f"DROP TABLE processed_events_{late.week:%Y%m%d}")
    assert (await batching.submit(late)).outcome == Outcome.APPLIED
    assert await rows.one(f"SELECT count(*) FROM processed_events_{late.week:%Y%m%d}") == 1


async def test_a_partition_that_cannot_be_made_refuses_the_delivery_without_a_busy_loop(
    batching: Batching, rows: Rows
) -> None:
    broken = delivery({**subscription("evt_1", "active"), "data": {"object": {"id": "sub_1"}}}, source=HASTY)
    assert (await batching.submit(broken)).outcome == Outcome.PARKED
    await rows.connection.execute("UPDATE processed_events SET received_at = received_at - interval '20 days'")
    with pytest.raises(DatabaseUnavailable):
        await batching.submit(broken, within=0.5)
    assert batching.prepared <= 2


async def test_a_database_that_lets_no_partition_be_made_refuses_until_it_does(batching: Batching, rows: Rows) -> None:
    await rows.connection.execute(f"DROP TABLE inbox_{utc_now():%Y%m%d}")
    await rows.connection.execute(
        "CREATE FUNCTION no_tables() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END $$;"
        "CREATE EVENT TRIGGER no_tables ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION no_tables()"
    )
    with pytest.raises(DatabaseUnavailable):
        await batching.submit(event("evt_1"))
    await rows.connection.execute("DROP EVENT TRIGGER no_tables")
    assert (await batching.submit(event("evt_1"))).outcome == Outcome.APPLIED


REFUSE = """
CREATE SEQUENCE tries;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('tries') <= {times} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '{state}'; END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER refuse BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION refuse();
"""


@pytest.mark.parametrize("state", ["40001", "40P01", "08006"])
async def test_a_transaction_that_lost_a_race_or_its_connection_runs_again(
    batching: Batching, rows: Rows, state: str
) -> None:
    await rows.connection.execute(REFUSE.format(state=state, times=3))
    assert (await batching.submit(event("evt_1"))).outcome == Outcome.APPLIED
    assert batching.sizes == [1] * 4
    assert await rows.counts() == {"processed_events": 1, "inbox": 1, "subscriptions": 1, "outbox": 2}


async def test_a_row_that_moved_between_its_lock_and_its_write_is_decided_again(batching: Batching, rows: Rows) -> None:
    await rows.connection.execute(
        REFUSE.format(state="", times=1)
        .replace("RAISE EXCEPTION 'not now' USING ERRCODE = ''", "RETURN NULL")
        .replace("INSERT ON inbox", "UPDATE ON subscriptions")
    )
    assert (await batching.submit(event("evt_1"))).outcome == Outcome.APPLIED
    assert batching.sizes == [1, 1]


async def test_two_rows_locked_crosswise_cost_nobody_a_delivery(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    await batching.submit(event("evt_a", object_id="sub_a"))
    await batching.submit(event("evt_b", object_id="sub_b"))
    await rows.connection.execute("SET deadlock_timeout = '60s'")
    async with rows.connection.transaction():
        await rows.connection.execute("SELECT FROM subscriptions WHERE external_id = 'sub_b' FOR UPDATE")
        blocked = asyncio.gather(
            *(batching.submit(event(f"evt_{name}2", object_id=f"sub_{name}", at=5)) for name in ("a", "b"))
        )
        await until(lambda: waiting(rows))
        await rows.connection.execute("SELECT FROM subscriptions WHERE external_id = 'sub_a' FOR UPDATE")
    assert [answer.outcome for answer in await blocked] == ["applied", "applied"]
    assert batching.sizes[-1] == 2
    assert len(batching.sizes) > 3


@pytest.mark.parametrize("state", ["25006", "53100", "57P03"])
async def test_a_server_that_takes_no_writes_refuses_at_once(batching: Batching, rows: Rows, state: str) -> None:
    await rows.connection.execute(REFUSE.format(state=state, times=1))
    with pytest.raises(DatabaseUnavailable):
        await batching.submit(event("evt_1"))
    assert (await batching.submit(event("evt_1"))).outcome == Outcome.APPLIED
    assert batching.sizes == [1, 1]


async def test_an_answer_to_commit_that_is_lost_is_asked_for_again(
    database_url: str, rows: Rows, tmp_path: Path
) -> None:
    async with wire(database_url, tmp_path) as cable, serving(cable.url) as served:
        found = Batching(served.service)
        found.batcher.start()
        await found.submit(event("evt_0"))
        cable.arm(b"COMMIT", Act.CUT_AFTER)
        assert (await found.submit(event("evt_1"))).outcome == Outcome.APPLIED
        assert found.sizes == [1, 1, 1]
        await found.batcher.stop()
    assert await rows.one("SELECT sum(duplicates) FROM processed_events") == 0


# --- what is kept, dropped and refused


async def test_what_nobody_sends_again_is_kept_past_its_deadline_and_the_rest_is_dropped(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    async with held(database_url, EMPTY_ROWS):
        kept = batching.submit(event("evt_kept", source=HASTY, object_id="sub_locked"), within=0.1, kept=True)
        dropped = batching.submit(event("evt_drop", source=HASTY, object_id="sub_locked"), within=0.1)
        with pytest.raises(DatabaseUnavailable):
            await dropped
        await until(lambda: tried(batching, 5))
        assert not kept.done()
        assert (await batching.submit(event("evt_fine", source=HASTY))).outcome == Outcome.APPLIED
    assert (await kept).outcome == Outcome.APPLIED
    assert await rows.one("SELECT array_agg(event_id ORDER BY event_id) FROM processed_events") == [
        "evt_fine",
        "evt_kept",
    ]
    assert batching.released == 3


async def test_kept_deliveries_that_wait_for_locks_hold_no_lane_and_stopping_waits_for_them(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    async with held(database_url, EMPTY_ROWS):
        kept = [
            batching.submit(
                event(f"evt_{number}", source=HASTY, object_id="sub_locked", at=number), within=0, kept=True
            )
            for number in range(8)
        ]
        await until(lambda: tried(batching, 20))
        assert (await batching.submit(event("evt_fine", source=HASTY), within=0.5)).outcome == Outcome.APPLIED
        stopping = asyncio.create_task(batching.batcher.stop())
        await until(lambda: tried(batching, 40))
        assert not stopping.done()
    await stopping
    assert all(future.done() for future in kept)
    assert await rows.one("SELECT count(*) FROM processed_events") == 9


async def test_one_delivery_whose_partition_cannot_be_made_costs_its_neighbours_nothing(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    broken = delivery({**subscription("evt_2", "active"), "data": {"object": {"id": "sub_1"}}}, source=PATIENT)
    await batching.submit(broken)
    await rows.connection.execute("UPDATE processed_events SET received_at = received_at - interval '20 days'")
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        futures = [batching.submit(each) for each in (event("evt_1"), broken, event("evt_3"))]
    assert await outcomes([*first, *futures]) == ["applied"] * 3 + ["database_unavailable", "applied"]


async def test_a_kept_delivery_whose_request_has_given_up_is_stored_all_the_same(
    batching: Batching, database_url: str, rows: Rows
) -> None:
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        kept, dropped = batching.submit(event("evt_kept"), kept=True), batching.submit(event("evt_drop"))
        for future in (kept, dropped):
            future.cancel()
    await outcomes(first)
    await until(lambda: tried(batching, 3))
    await batching.batcher.stop()
    assert await rows.one("SELECT count(*) FROM processed_events WHERE event_id = 'evt_kept'") == 1
    assert await rows.one("SELECT count(*) FROM processed_events WHERE event_id = 'evt_drop'") == 0
    assert batching.released == 4


async def test_what_waited_past_its_deadline_is_not_begun(batching: Batching, database_url: str, rows: Rows) -> None:
    async with held(database_url, EMPTY_ROWS):
        first = await batching.all_lanes_wait(rows)
        late = batching.submit(event("evt_late"), within=-1)
        fine = batching.submit(event("evt_fine"))
    assert await outcomes([*first, late, fine]) == ["applied", "applied", "database_unavailable", "applied"]
    assert batching.sizes == [1, 1, 1]


async def test_the_queue_is_bounded(service: Service) -> None:
    full = Batching(service, queue_max_events=2)
    futures = [full.submit(event(f"evt_{number}")) for number in range(2)]
    with pytest.raises(Overloaded):
        _ = full.submit(event("evt_2"))
    full.batcher.start()
    assert await outcomes(futures) == ["applied", "applied"]
    await full.batcher.stop()


async def test_stopping_finishes_what_was_accepted_and_takes_nothing_more(service: Service, rows: Rows) -> None:
    found = Batching(service)
    found.batcher.start()
    futures = [found.submit(event(f"evt_{number}")) for number in range(50)]
    await found.batcher.stop()
    assert all(future.done() for future in futures)
    with pytest.raises(ShuttingDown):
        _ = found.submit(event("evt_50"))
    assert await rows.one("SELECT count(*) FROM inbox") == 50


async def tried(batching: Batching, times: int) -> bool:
    return len(batching.sizes) >= times
