"""What the probes answer while PostgreSQL is reachable but does not behave."""

import time
from pathlib import Path

from tests.proxy import Act, wire
from tests.service import Rows, Served, serving, until


async def test_a_database_that_falls_silent_is_told_quickly_and_ready_again_when_it_speaks(
    database_url: str, tmp_path: Path
) -> None:
    async with wire(database_url, tmp_path) as cable, serving(cable.url) as served:
        assert await ready(served)
        cable.arm(b"BEGIN", Act.HOLD_ANSWER, times=100)
        started = time.monotonic()
        assert (await served.client.get("/readyz")).status_code == 503
        assert time.monotonic() - started < 3
        assert (await served.client.get("/metrics")).status_code == 200
        assert time.monotonic() - started < 6
        cable.times = 0
        cable.released.set()
        await until(lambda: ready(served), 5)


async def ready(served: Served) -> bool:
    return (await served.client.get("/readyz")).status_code == 200


async def test_metrics_are_told_whatever_the_database_answers(served: Served, rows: Rows) -> None:
    await rows.connection.execute("ALTER TABLE subscriptions RENAME TO not_there")
    answer = await served.client.get("/metrics")
    assert answer.status_code == 200
    assert "oncehook_batch_size_bucket" in answer.text
