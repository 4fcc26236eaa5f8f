"""The schema: models and migrations say the same, there is a way back, and replicas may migrate at once."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Connection

from alembic import command
from app.clock import utc_now
from app.db import schema
from app.db.engine import Database
from app.db.models import Base
from tests.service import Rows

ROOT = Path(__file__).resolve().parents[2]
ROOT = Path(__file__).resolve().parents[2]
TABLES = "SELECT array_agg(tablename::text ORDER BY tablename) FROM pg_tables WHERE schemaname = 'public'"


@pytest.fixture
async def empty_url(server: str) -> AsyncIterator[str]:
    """The URL of a database that holds nothing."""
    name = f"empty_{uuid4().hex[:12]}"
    connection = await asyncpg.connect(server)
    await connection.execute(f"CREATE DATABASE {name}")
    yield server.replace("/postgres?", f"/{name}?")
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()


async def test_models_and_migrations_say_the_same(database_url: str) -> None:
    def differences(connection: Connection) -> list[object]:
        def ours(name: str | None, kind: str, _: object) -> bool:
            return kind != "table" or name in Base.metadata.tables

        options = {"include_name": ours, "compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, Base.metadata))

    database = Database.connect(database_url, pool_size=1)
    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []
    await database.close()


async def test_models_and_migrations_have_the_same_checks(rows: Rows) -> None:
    found = await rows.all(
        "SELECT conrelid::regclass::text AS table, conname AS name FROM pg_constraint"
        " WHERE contype = 'c' AND conrelid::regclass::text = ANY($1)",
        list(Base.metadata.tables),
    )
    declared = {
        (table.name, str(constraint.name))
        for table in Base.metadata.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, CheckConstraint)
    }
    assert {(row["table"], row["name"]) for row in found} == declared


async def test_the_way_back_leads_to_nothing_and_forth_again_to_the_same(database_url: str, rows: Rows) -> None:
    described = (
        "SELECT array_agg((table_name, column_name, data_type, is_nullable, column_default)::text"
        " ORDER BY table_name, column_name)"
        " FROM information_schema.columns WHERE table_schema = 'public' AND table_name !~ '_[0-9]{8}$'"
    )
    before = await rows.one(described)
    await asyncio.to_thread(command.downgrade, schema.config(database_url), "base")
    assert await rows.one(TABLES) == ["alembic_version"]
    await schema.migrate(database_url)
    assert await rows.one(described) == before


async def test_a_database_that_holds_nothing_is_older(empty_url: str) -> None:
    database = Database.connect(empty_url, pool_size=1)
    assert await schema.state_of(database, schema.known_revisions()) is schema.SchemaState.OLDER
    await database.close()


async def test_an_upgrade_of_what_is_up_to_date_changes_nothing(database_url: str, rows: Rows) -> None:
    before = await rows.one(TABLES)
    await schema.prepare(database_url, utc_now().date())
    assert await rows.one(TABLES) == before


async def test_migrations_are_found_beside_the_working_directory_where_the_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_ROOT", tmp_path / "site-packages")
    assert schema.config().get_main_option("script_location") is not None
    assert schema.known_revisions()[-1] == "0001"


async def test_alembics_own_command_reads_the_database_from_the_environment(database_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "alembic", "check", env={"DATABASE_URL": database_url, "PATH": ""},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert b"No new upgrade operations detected" in said
