"""One loop runs every job: at once while there is work, and it outlives what a run meets."""

import asyncio

from app.jobs.loop import Job, run


async def test_a_job_runs_again_at_once_while_there_is_work_and_survives_a_failure() -> None:
    stopping = asyncio.Event()
    results: list[int | Exception] = [2, 1, ValueError("no"), 0]

    async def run_once() -> int:
        result = results.pop(0)
        if not results:
            stopping.set()
        if isinstance(result, Exception):
            raise result
        return result

    await asyncio.wait_for(run(Job("test", run_once, 0.001), stopping), 5)
    assert results == []


async def test_a_job_stops_between_two_runs() -> None:
    stopping, started = asyncio.Event(), asyncio.Event()

    async def run_once() -> int:
        started.set()
        return 0

    task = asyncio.create_task(run(Job("test", run_once, 3600), stopping))
    await started.wait()
    stopping.set()
    await asyncio.wait_for(task, 5)
