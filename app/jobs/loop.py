"""One loop runs every job: at once while there is work, else at its interval, and it stops between two runs."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Job:
    """`run_once` does a bounded piece of work and returns how much it did."""

    name: str
    run_once: Callable[[], Awaitable[int]]
    interval_seconds: float


async def run(job: Job, stopping: asyncio.Event) -> None:
    """Run a job until `stopping` is set; a run that fails is logged and tried again at the interval."""
    while not stopping.is_set():
        try:
            done = await job.run_once()
        except Exception as error:  # noqa: BLE001  (a job outlives whatever one run of it meets)
            log.warning("job_failed", job=job.name, error=type(error).__name__)
            done = 0
        if done:
            log.info("job_ran", job=job.name, done=done)
            continue
        try:
            await asyncio.wait_for(stopping.wait(), job.interval_seconds)
        except TimeoutError:
            continue
