"""A PostgreSQL of the run's own, one template database, and a clone of it for each test that asks."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from app.clock import utc_now
from app.db.embedded import running
from app.db.schema import prepare
from tests.service import Rows, Served, serving

TIMEZONE = "Pacific/Kiritimati"
"""UTC+14: what would depend on the server's time zone shows."""


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The URL of the run's server, fast and not durable; PG_BINDIR picks its binaries."""
    root = Path(tempfile.mkdtemp(prefix="oncehook-tests-"))
    root.chmod(0o755)
    bindir = os.environ.get("PG_BINDIR")
    settings = {"timezone": TIMEZONE, "max_connections": "300"}
    try:
        with running(root, bindir=Path(bindir) if bindir else None, durable=False, settings=settings) as found:
            yield found.url
    finally:
        shutil.rmtree(root, ignore_errors=True)


def in_database(server: str, name: str) -> str:
    """The URL of another database of the server."""
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture(scope="session")
def template(server: str) -> str:
    """A migrated database with its partitions, which nobody connects to."""
    name = "template_oncehook"

    async def make() -> None:
        await _statement(server, f"CREATE DATABASE {name}")
        await prepare(in_database(server, name), utc_now().date())

    asyncio.run(make())
    return name


@pytest.fixture
async def database_url(server: str, template: str) -> AsyncIterator[str]:
    """A fresh clone of the template, gone after the test."""
    name = f"test_{uuid4().hex[:12]}"
    await _statement(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield in_database(server, name)
    await _statement(server, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[Rows]:
    """A connection that looks from outside at what the service wrote."""
    connection = await asyncpg.connect(database_url)
    yield Rows(connection)
    await connection.close()


@pytest.fixture
async def served(database_url: str) -> AsyncIterator[Served]:
    """The service in this process, on the test's database."""
    async with serving(database_url) as found:
        yield found


async def _statement(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
