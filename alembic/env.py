"""Run migrations: one transaction, under an advisory lock, on a connection of its own."""

import asyncio
import os

import asyncpg
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from alembic import context
from app.db.models import Base
from app.db.url import dsn_and_arguments

LOCK = 0x6F6E6365_00000002
"""Held until the transaction ends, so replicas that start together migrate one after the other."""


def include_name(name: str | None, kind: str, _: object) -> bool:
    """Leave the partitions out of comparisons: they follow from their parents."""
    return kind != "table" or name in Base.metadata.tables


def run(connection: Connection) -> None:
    """Upgrade or compare, on an open connection."""
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_name=include_name,
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        context.run_migrations()


async def connect_and_run(url: str) -> None:
    """Open the one connection."""
    dsn, arguments = dsn_and_arguments(url)

    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(dsn, **arguments)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run)
        await connection.commit()
    await engine.dispose()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    asyncio.run(connect_and_run(context.config.attributes.get("url") or os.environ["DATABASE_URL"]))
