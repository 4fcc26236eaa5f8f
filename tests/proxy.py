"""A wire between the service and PostgreSQL that can be cut or held at a statement, from outside the product."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit


class Act(StrEnum):
    """What happens when the statement passes."""

    HOLD_ANSWER = "hold_answer"
    """The server gets it; its answers are kept back until the wire is released."""
    CUT_AFTER = "cut_after"
    """The server gets it, and its answer; the client gets a closed connection instead."""
    CUT_BEFORE = "cut_before"
    """The server never gets it; both sides see a closed connection."""


@dataclass(slots=True)
class Wire:
    """`statement` sets off `act`, `times` times, on a connection that has carried `after` since it was opened."""

    url: str
    statement: bytes = b""
    after: bytes = b""
    act: Act = Act.HOLD_ANSWER
    times: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def arm(self, statement: bytes, act: Act, *, after: bytes = b"", times: int = 1) -> None:
        """Wait for the statement."""
        self.statement, self.act, self.after, self.times = statement, act, after, times
        self.reached.clear()
        self.released.clear()

    def sees(self, data: bytes, carried: bytes) -> Act | None:
        """What to do about these bytes of a client whose connection `carried` others before."""
        if not self.times or self.statement not in data or self.after not in carried + data:
            return None
        self.times -= 1
        return self.act


@asynccontextmanager
async def wire(database_url: str, folder: Path) -> AsyncIterator[Wire]:
    """A socket in `folder` that leads to the server of `database_url`."""
    parts = urlsplit(database_url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    target = Path(query["host"]) / f".s.PGSQL.{query['port']}"
    found = Wire(f"postgresql://postgres@{parts.path}?host={quote(str(folder))}&port={query['port']}")
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with suppress(OSError, asyncio.CancelledError):
            await _carry(found, reader, writer, target)
        writer.close()

    listener = await asyncio.start_unix_server(connected, folder / target.name)
    try:
        yield found
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(found: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Path) -> None:
    server_reader, server_writer = await asyncio.open_unix_connection(target)
    answers = asyncio.create_task(_pump(server_reader, writer))
    carried = b""
    try:
        while data := await reader.read(65536):
            act = found.sees(data, carried)
            carried += data
            if act is Act.CUT_BEFORE:
                found.reached.set()
                return
            if act is not None:
                answers.cancel()
                await asyncio.gather(answers, return_exceptions=True)
            server_writer.write(data)
            await server_writer.drain()
            if act is Act.CUT_AFTER:
                await server_reader.read(65536)
                found.reached.set()
                return
            if act is Act.HOLD_ANSWER:
                found.reached.set()
                await found.released.wait()
                answers = asyncio.create_task(_pump(server_reader, writer))
    finally:
        answers.cancel()
        await asyncio.gather(answers, return_exceptions=True)
        server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
