"""The schema's revision: bring a database to it, and tell whether a database is at or past it."""

import asyncio
from datetime import date
from enum import StrEnum
from pathlib import Path

import asyncpg
from alembic.config import Config
from alembic.script import ScriptDirectory

from alembic import command
from app.db import partitions
from app.db.engine import LOST, Database, Timeouts
from app.errors import DatabaseUnavailable

_ROOT = Path(__file__).resolve().parents[2]
_PROBE = Timeouts(lock=500, statement=1000, idle=2000)


class SchemaState(StrEnum):
    """What a database's revision is to this code."""

    CURRENT = "current"
    NEWER = "newer"
    """A revision that this code does not know: a later version has migrated already, and stays compatible."""
    OLDER = "older"
    """Not migrated yet."""


def config(url: str | None = None) -> Config:
    """Alembic's configuration; `url` is handed to `env.py` as it stands."""
    made = Config(str(_root() / "alembic.ini"))
    made.attributes["url"] = url
    return made


async def migrate(url: str) -> None:
    """Upgrade to this code's revision, under a transaction-level advisory lock, so that replicas may race.

    Raises:
        DatabaseUnavailable: no connection could be had; an error of a migration itself is raised as it is.
    """
    try:
        await asyncio.to_thread(command.upgrade, config(url), "head")
    except (asyncpg.PostgresError, *LOST) as error:  # of connecting: what a statement raises, SQLAlchemy wraps
        message = f"no connection to PostgreSQL could be had: {str(error) or type(error).__name__}"
        raise DatabaseUnavailable(message) from error


async def prepare(url: str, today: date) -> None:
    """Migrate, and make the partitions of the days and weeks to come."""
    await migrate(url)
    database = Database.connect(url, pool_size=1)
    try:
        await partitions.ensure_ahead(database, today)
    finally:
        await database.close()


def known_revisions() -> tuple[str, ...]:
    """All revisions of this code, its own first."""
    script = ScriptDirectory.from_config(config())
    return tuple(revision.revision for revision in script.walk_revisions())


async def state_of(database: Database, known: tuple[str, ...]) -> SchemaState:
    """Compare a database's revision with `known`.

    Raises:
        DatabaseUnavailable: it cannot be asked.
    """
    async with database.begin(_PROBE) as connection:
        (table,) = await connection.fetch("SELECT to_regclass('alembic_version') IS NOT NULL AS there")
        found = await connection.fetch("SELECT version_num FROM alembic_version") if table["there"] else []
    revision = found[0]["version_num"] if found else None
    if revision == known[0]:
        return SchemaState.CURRENT
    return SchemaState.OLDER if revision is None or revision in known else SchemaState.NEWER


def _root() -> Path:
    """Where `alembic.ini` lies: beside the package in a checkout, in the working directory of the container."""
    return _ROOT if (_ROOT / "alembic.ini").exists() else Path.cwd()
