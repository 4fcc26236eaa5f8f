"""Group commit: deliveries that arrive together share one transaction; one that is alone goes at once."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from app import metrics
from app.db.engine import Timeouts
from app.db.faults import Fault, fault_of
from app.errors import DatabaseUnavailable, OncehookError, Overloaded, ShuttingDown
from app.inbox.receive import Answer
from app.providers.base import Delivery

log = structlog.get_logger()

LANES = 2
"""Transactions in flight: while one waits for its flush the other works. A third was measured to gain nothing."""
MAX_EVENTS = 128
"""Deliveries of one transaction; past it a batch's own time grows faster than what it saves."""
MAX_BYTES = 4_000_000
"""Bodies of one transaction. A larger body goes alone, on a lane of its own, so that it delays nobody."""

MAKINGS = 2
"""How often partitions are made for a batch before the one whose partition cannot be made is looked for."""

_OF_A_MEMBER = (Fault.DATA, Fault.TIMEOUT, Fault.BUG)
"""Faults that one delivery of a batch brings about, so the batch is halved until it is alone."""


class Receive(Protocol):
    """The transaction over a batch."""

    def __call__(
        self, deliveries: Sequence[Delivery], timeouts: Timeouts, *, refused: bool = False, again: bool = False
    ) -> Awaitable[list[Answer]]:
        """See `Receiver.receive`."""
        ...


@dataclass(slots=True, eq=False)
class Item:
    """One delivery on its way. `deadline` is on the loop's clock; `kept`: nobody will send it again, so it stays.

    `again`: the answer to its COMMIT was lost. `rests`: how often it was set aside.
    """

    delivery: Delivery
    deadline: float
    kept: bool
    future: asyncio.Future[Answer]
    released: Callable[[], None]
    again: bool = False
    rests: int = 0

    def answer(self, answer: Answer) -> None:
        """Tell the waiting request, if it still waits."""
        self.released()
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, error: OncehookError) -> None:
        """Tell the waiting request that nothing was stored."""
        self.released()
        if not self.future.done():
            self.future.set_exception(error)

    def worth_trying(self, now: float) -> bool:
        """Whether anybody gains from this delivery's being stored now."""
        return self.kept or (not self.future.done() and now < self.deadline)


@dataclass(slots=True)
class _Lane:
    waiting: deque[Item] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Batcher:
    """The queue between the requests and the transaction. Bounded; nobody cancels a batch in flight."""

    def __init__(
        self,
        receive: Receive,
        make_partitions: Callable[[Sequence[Delivery]], Awaitable[None]],
        *,
        queue_max_events: int,
    ) -> None:
        self._receive = receive
        self._make_partitions = make_partitions
        self._queue_max_events = queue_max_events
        self._small, self._large = _Lane(), _Lane()
        self._tasks: list[asyncio.Task[None]] = []
        self._resting = 0
        self._stopping = False

    def start(self) -> None:
        """Begin to take batches."""
        lanes = [self._small] * LANES + [self._large]
        self._tasks = [asyncio.create_task(self._run(lane)) for lane in lanes]

    async def stop(self) -> None:
        """Take no new delivery, finish what was accepted, and end."""
        self._stopping = True
        self._wake_all()
        await asyncio.gather(*self._tasks)

    def submit(
        self, delivery: Delivery, *, deadline: float, kept: bool, released: Callable[[], None]
    ) -> asyncio.Future[Answer]:
        """Queue one delivery; the future is set after its COMMIT. `released` is called once its body is let go.

        Raises:
            Overloaded: the queue is full.
            ShuttingDown: the process is stopping.
        """
        if self._stopping:
            message = "the service is stopping"
            raise ShuttingDown(message)
        if self.queued >= self._queue_max_events:
            message = "too many deliveries are waiting"
            raise Overloaded(message)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue(Item(delivery, deadline, kept, future, released))
        return future

    @property
    def queued(self) -> int:
        """Deliveries waiting for a transaction."""
        return len(self._small.waiting) + len(self._large.waiting) + self._resting

    def _queue(self, item: Item) -> None:
        lane = self._large if len(item.delivery.body) > MAX_BYTES else self._small
        lane.waiting.append(item)
        lane.wake.set()

    def _set_aside(self, item: Item) -> None:
        """Queue a kept delivery again after a while, so that it holds no lane while others could use it."""
        item.rests += 1
        self._resting += 1
        asyncio.get_running_loop().call_later(_backoff(item.rests), self._take_back, item)

    def _take_back(self, item: Item) -> None:
        self._resting -= 1
        self._queue(item)
        self._wake_all()  # a lane that is to stop waits for those that rest

    def _wake_all(self) -> None:
        for lane in (self._small, self._large):
            lane.wake.set()

    async def _run(self, lane: _Lane) -> None:
        while True:
            while not lane.waiting:
                if self._stopping and not self._resting:
                    return
                lane.wake.clear()
                await lane.wake.wait()
            batch = self._take(lane)
            metrics.QUEUED.set(self.queued)
            if batch:
                await self._work(batch)

    @staticmethod
    def _take(lane: _Lane) -> list[Item]:
        now = asyncio.get_running_loop().time()
        batch: list[Item] = []
        size = 0
        while lane.waiting and len(batch) < MAX_EVENTS:
            item = lane.waiting[0]
            if batch and size + len(item.delivery.body) > MAX_BYTES:
                break
            lane.waiting.popleft()
            if item.worth_trying(now):
                batch.append(item)
                size += len(item.delivery.body)
            else:
                item.fail(DatabaseUnavailable("the deadline passed in the queue"))
        return batch

    async def _work(self, batch: list[Item]) -> None:
        """Commit a batch whatever it takes: again, in halves, or not at all; every member is answered."""
        loop = asyncio.get_running_loop()
        tries = 0
        while batch := self._still_wanted(batch, loop.time()):
            fault, error = await self._try(batch)
            if error is None:
                return
            tries += 1
            metrics.BATCH_FAULTS.labels(fault).inc()
            log.warning("batch_failed", fault=fault, **_described(error), deliveries=len(batch), tries=tries)
            for item in batch:
                item.again = item.again or fault is Fault.COMMIT_UNKNOWN
            of_a_member = fault in _OF_A_MEMBER or (fault is Fault.PARTITION and tries > MAKINGS)
            if of_a_member and len(batch) > 1:
                middle = len(batch) // 2
                await self._work(batch[:middle])
                await self._work(batch[middle:])
                return
            if fault in (Fault.DATA, Fault.BUG):
                await self._park(batch[0])
                return
            if of_a_member and batch[0].kept:
                self._set_aside(batch[0])
                return
            if of_a_member or (fault is Fault.UNAVAILABLE and not any(item.kept for item in batch)):
                break
            await self._before_another_try(batch, fault, tries)
        for item in batch:
            item.fail(DatabaseUnavailable("the database did not take the delivery"))

    @staticmethod
    def _still_wanted(batch: list[Item], now: float) -> list[Item]:
        wanted = [item for item in batch if item.worth_trying(now)]
        for item in batch:
            if item not in wanted:
                item.fail(DatabaseUnavailable("the database did not take the delivery in time"))
        return wanted

    async def _try(
        self, batch: Sequence[Item], *, refused: bool = False
    ) -> tuple[Fault, None] | tuple[Fault, Exception]:
        started = time.perf_counter()
        deadline = min(item.delivery.source.deadline_seconds for item in batch)
        again = any(item.again for item in batch)
        try:
            answers = await self._receive(
                [item.delivery for item in batch], Timeouts.within(deadline), again=again, refused=refused
            )
        except Exception as error:  # noqa: BLE001  (every kind of fault has its way; none may end the lane)
            return fault_of(error), error
        metrics.COMMIT_SECONDS.observe(time.perf_counter() - started)
        metrics.BATCH_SIZE.observe(len(batch))
        for item, answer in zip(batch, answers, strict=True):
            item.answer(answer)
        return Fault.BUG, None

    async def _park(self, item: Item) -> None:
        """Record the culprit as parked, so that it is acknowledged and blocks nobody."""
        fault, error = await self._try([item], refused=True)
        if error is not None:
            log.error("parking_failed", fault=fault, **_described(error), event_id=item.delivery.event_id)
            item.fail(DatabaseUnavailable("the delivery could not be recorded"))

    async def _before_another_try(self, batch: Sequence[Item], fault: Fault, tries: int) -> None:
        if fault is Fault.PARTITION:
            await self._prepare(batch)
        elif tries > 1 or fault is Fault.UNAVAILABLE:
            await asyncio.sleep(_backoff(tries))

    async def _prepare(self, batch: Sequence[Item]) -> None:
        try:
            await self._make_partitions([item.delivery for item in batch])
        except Exception as error:  # noqa: BLE001  (the batch is tried again until its deadline)
            log.warning("partitions_failed", fault=fault_of(error), **_described(error))
            await asyncio.sleep(_backoff(1))


def _described(error: BaseException) -> dict[str, str | None]:
    """What may be logged of a database error: never its message or detail, which can quote values."""
    return {
        "error": type(error).__name__,
        "sqlstate": getattr(error, "sqlstate", None),
        "constraint": getattr(error, "constraint_name", None),
    }


def _backoff(tries: int) -> float:
    """Seconds to wait: doubling from 20 ms to 2 s, the half of it random, so that lanes do not move in step."""
    return min(0.02 * 2.0 ** min(tries, 10), 2.0) * random.uniform(0.5, 1.0)  # noqa: S311
