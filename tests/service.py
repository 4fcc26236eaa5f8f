"""The service under test: in this process, or as real server processes; and what it wrote, seen from outside."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx

from app.main import Service, build
from app.settings import Settings
from tests.events import SECRET, body_of, headers_of

PATIENCE_SECONDS = 30.0


@dataclass(slots=True)
class Served:
    """The service in this process; requests reach it without a socket."""

    service: Service
    client: httpx.AsyncClient

    async def post(self, event: Any, path: str = "/webhooks/stripe", **headers: str) -> httpx.Response:
        """Sign and deliver one event."""
        return await post(self.client, event, path, **headers)


async def post(client: httpx.AsyncClient, event: Any, path: str = "/webhooks/stripe", **headers: str) -> httpx.Response:
    """Sign and deliver one event; the bytes that were signed are the bytes that are sent."""
    body = body_of(event)
    return await client.post(path, content=body, headers=headers_of(body) | headers)


@asynccontextmanager
async def serving(database_url: str, **settings: Any) -> AsyncIterator[Served]:
    """Start the parts of one process as its lifespan does."""
    values: dict[str, Any] = {"database_url": database_url, "stripe_webhook_secrets": SECRET.decode()} | settings
    service = build(Settings(_env_file=None, **values))
    transport = httpx.ASGITransport(app=service.app)
    client = httpx.AsyncClient(transport=transport, base_url="http://oncehook")
    async with service.app.api.router.lifespan_context(service.app.api), client:
        yield Served(service, client)


@dataclass(slots=True)
class Process:
    """One real server process."""

    url: str
    popen: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End it as a crash would."""
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> int:
        """Ask it to stop, and return its status."""
        self.popen.send_signal(signal.SIGTERM)
        return self.popen.wait(PATIENCE_SECONDS)


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@asynccontextmanager
async def process(
    database_url: str, *, workers: int = 1, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """`oncehook serve` in a process of its own, ready to receive; killed at the end if it still runs."""
    port = free_port()
    command = [sys.executable, "-m", "app", "serve", "--port", str(port), "--workers", str(workers)]
    values = {"DATABASE_URL": database_url, "STRIPE_WEBHOOK_SECRETS": SECRET.decode()} | dict(environment or {})
    popen = subprocess.Popen(command, env=os.environ | values, stdout=subprocess.DEVNULL)  # noqa: ASYNC220
    found = Process(f"http://127.0.0.1:{port}", popen)
    try:
        await until(lambda: _ready(found))
        yield found
    finally:
        if popen.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                found.stop()
        found.kill()


async def _ready(found: Process) -> bool:
    if found.popen.poll() is not None:
        message = f"the server ended with status {found.popen.returncode}"
        raise RuntimeError(message)
    async with httpx.AsyncClient() as client:
        try:
            return (await client.get(f"{found.url}/readyz")).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False


async def until(condition: Callable[[], Awaitable[bool]], patience: float = PATIENCE_SECONDS) -> None:
    """Wait for something to come true; fails when it does not in time."""
    async with asyncio.timeout(patience):
        while not await condition():  # noqa: ASYNC110  (what is waited for is in other processes)
            await asyncio.sleep(0.02)


_SURROGATES = {"id", "version", "recorded_at"}


@dataclass(slots=True)
class Rows:
    """What the service wrote."""

    connection: asyncpg.Connection

    async def all(self, query: str, *args: Any) -> list[dict[str, Any]]:
        """The rows of a query as dictionaries."""
        return [dict(row) for row in await self.connection.fetch(query, *args)]

    async def one(self, query: str, *args: Any) -> Any:
        """The one value of a query."""
        return await self.connection.fetchval(query, *args)

    async def subscriptions(self, *, leaving_out: Iterable[str] = ()) -> list[dict[str, Any]]:
        """All subscriptions, every column but surrogate ids, versions and local times."""
        gone = _SURROGATES | set(leaving_out)
        found = await self.all("SELECT * FROM subscriptions ORDER BY namespace, external_id")
        return [{name: value for name, value in row.items() if name not in gone} for row in found]

    async def counts(self) -> Mapping[str, int]:
        """How many rows each table has."""
        tables = ("processed_events", "inbox", "subscriptions", "outbox")
        return {table: await self.one(f"SELECT count(*) FROM {table}") for table in tables}
