"""Connections to PostgreSQL: the pool, and the transaction with BEGIN and COMMIT in sight."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import asyncpg
import orjson
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.db.url import dsn_and_arguments
from app.errors import DatabaseUnavailable


class Row(Protocol):
    """One row of an answer, by position or by column name."""

    def __getitem__(self, key: Any) -> Any:
        """The value of a column."""
        ...


class Connection(Protocol):
    """What the path needs of a connection; raw asyncpg satisfies it, so a statement costs one round trip."""

    async def fetch(self, query: str, *args: Any) -> Sequence[Row]:
        """Run one statement and return its rows."""
        ...

    async def execute(self, query: str, *args: Any) -> str:
        """Run one statement, or several without parameters, and return the status."""
        ...


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of one transaction, in milliseconds; each is set LOCAL, so that a pooler between keeps nothing of it."""

    lock: int
    statement: int
    idle: int

    @classmethod
    def within(cls, deadline_seconds: float) -> "Timeouts":
        """Limits that leave room for every halving of a batch inside the deadline."""
        deadline = deadline_seconds * 1000
        return cls(lock=max(int(deadline / 10), 10), statement=int(deadline * 0.6), idle=int(deadline))


class CommitUnknown(DatabaseUnavailable):
    """The connection was lost between COMMIT and its answer: what was written may stand or not."""


class ConnectionLost(DatabaseUnavailable):
    """The connection was lost before COMMIT was sent: nothing was written."""


LOST = (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError)
"""What a connection raises that can no longer be used."""


class Database:
    """One pool of one process."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    def connect(cls, url: str, *, pool_size: int, patience_seconds: float = 5.0) -> "Database":
        """Make the pool; no connection is opened yet.

        `patience_seconds` bounds connecting, waiting for a pooled connection, and (four times it) one statement.
        """
        dsn, arguments = dsn_and_arguments(url)
        arguments.setdefault("timeout", patience_seconds)
        arguments.setdefault("command_timeout", patience_seconds * 4)

        async def connect() -> asyncpg.Connection:
            return await asyncpg.connect(dsn, **arguments)

        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=patience_seconds,
            pool_use_lifo=True,
            json_deserializer=orjson.loads,
        )
        return cls(engine)

    @property
    def engine(self) -> AsyncEngine:
        """SQLAlchemy's own engine on the same pool, for what people read and what is not the path."""
        return self._engine

    @asynccontextmanager
    async def begin(self, timeouts: Timeouts) -> AsyncIterator[Connection]:
        """A transaction: BEGIN here, COMMIT where the block ends, ROLLBACK where it raises.

        Raises:
            ConnectionLost: there is no usable connection; nothing was written.
            CommitUnknown: the answer to COMMIT did not arrive.
        """
        async with self._connection() as connection:
            await connection.execute(
                f"BEGIN; SET LOCAL lock_timeout = {timeouts.lock}; "
                f"SET LOCAL statement_timeout = {timeouts.statement}; "
                f"SET LOCAL idle_in_transaction_session_timeout = {timeouts.idle}"
            )
            try:
                yield connection
            except BaseException:
                if not connection.is_closed():
                    await connection.execute("ROLLBACK")
                raise
            try:
                await connection.execute("COMMIT")
            except LOST as error:
                connection.terminate()
                message = "the connection was lost while COMMIT was under way"
                raise CommitUnknown(message) from error

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """A pooled raw connection; one that broke is thrown away instead of being put back."""
        try:
            pooled = await self._engine.connect()
        except (SQLAlchemyError, asyncpg.PostgresError, *LOST) as error:
            message = "no connection to PostgreSQL could be had"
            raise ConnectionLost(message) from error
        try:
            raw = (await pooled.get_raw_connection()).driver_connection
            try:
                yield raw
            except LOST as error:
                if isinstance(error, ValueError):  # asyncpg's own DataError: a value that cannot be sent
                    raise
                message = "the connection to PostgreSQL was lost"
                raise ConnectionLost(message) from error
            finally:
                if raw is None or raw.is_closed():
                    await pooled.invalidate()
        finally:
            await pooled.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._engine.dispose()
