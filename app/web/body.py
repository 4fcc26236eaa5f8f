"""Read a request's body within its limits of size, time and memory."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from app import metrics
from app.errors import BodyTimeout, Overloaded, TooLarge

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection before its body was complete."""


class Memory:
    """Bytes of bodies that are being read or queued, of one process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0

    def take(self, size: int) -> None:
        """Account for `size` bytes.

        Raises:
            Overloaded: they do not fit any more.
        """
        if self._used + size > self._limit:
            message = "too many bytes are in flight"
            raise Overloaded(message)
        self._used += size
        metrics.BYTES_IN_FLIGHT.set(self._used)

    def give(self, size: int) -> None:
        """Let `size` bytes go."""
        self._used -= size
        metrics.BYTES_IN_FLIGHT.set(self._used)


class Reservation:
    """The bytes of one request; let go exactly once, whoever comes to it first."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Hold at least `size` bytes.

        Raises:
            Overloaded: they do not fit any more.
        """
        if size > self.size:
            self._memory.take(size - self.size)
            self.size = size

    def release(self) -> None:
        """Let all go; a second call does nothing."""
        self._memory.give(self.size)
        self.size = 0


async def read_body(receive: Receive, reservation: Reservation, *, max_bytes: int, timeout_seconds: float) -> bytes:
    """The whole body.

    Raises:
        TooLarge: it is larger than `max_bytes`; the rest was not read.
        Overloaded: there is no memory for it.
        BodyTimeout: it did not arrive in `timeout_seconds`.
        ClientGone: the client closed the connection.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _read(receive, reservation, max_bytes)
    except TimeoutError as error:
        message = f"the body did not arrive within {timeout_seconds:g} seconds"
        raise BodyTimeout(message) from error


async def _read(receive: Receive, reservation: Reservation, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > max_bytes:
            raise too_large(max_bytes)
        reservation.grow_to(size)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def too_large(max_bytes: int) -> TooLarge:
    """The error that names the limit."""
    return TooLarge(f"the body is larger than {max_bytes} bytes")
