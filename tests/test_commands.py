"""The commands as a person meets them: one line for an error, and a `dev` that survives its own end."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from typer.testing import CliRunner, Result

from app.cli import app
from app.send.command import read_dev_env
from tests.events import SECRET, subscription
from tests.service import PATIENCE_SECONDS, Rows, free_port, post, until

ROOT = Path(__file__).resolve().parents[1]
QUIET = {"DATABASE_URL": "", "STRIPE_WEBHOOK_SECRETS": "", "SOURCES_FILE": ""}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `.env` and no `.oncehook` of the checkout."""
    tmp_path.chmod(0o755)  # root's PostgreSQL runs as another user
    monkeypatch.chdir(tmp_path)
    for name in QUIET:
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env={"COLUMNS": "160", **environment}).invoke(app, list(arguments))


def test_check_config_shows_sources_and_limits_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "sources.toml"
    path.write_text('[[sources]]\nname = "eu"\nprovider = "stripe"\nnamespace = "eu"\nsecrets = ["whsec_hidden_too"]\n')
    found = run("check-config", STRIPE_WEBHOOK_SECRETS="new:whsec_hidden", SOURCES_FILE=str(path))
    assert found.exit_code == 0
    assert "new" in found.output
    assert "eu" in found.output
    assert "hidden" not in found.output
    assert "DATABASE_URL is not set" in found.output


def test_check_config_without_a_source_says_what_to_set() -> None:
    assert "No source is configured" in run("check-config").output


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["serve"], {}, "DATABASE_URL is not set"),
        (["migrate"], {}, "DATABASE_URL is not set"),
        (["check-config"], {"DEDUP_HORIZON_DAYS": "7"}, "DEDUP_HORIZON_DAYS is 7"),
        (["check-config"], {"DEDUP_HORIZON_DAYS": "40"}, "PAYLOAD_RETENTION_DAYS"),
        (["check-config"], {"SOURCES_FILE": "/nowhere.toml"}, "/nowhere.toml"),
        (["check-config"], {"SOURCES_FILE": "sources.toml"}, "may hold [[sources]] tables"),
        (["check-config"], {"DATABASE_URL": "mysql://root:hidden@h/x"}, "postgresql://"),
        (["migrate"], {"DATABASE_URL": "mysql://root:hidden@h/x"}, "postgresql://"),
        (["serve", "--workers", "2"], {"DATABASE_URL": "mysql://root:hidden@h/x"}, "postgresql://"),
        (["migrate"], {"DATABASE_URL": "postgresql://root:hidden@127.0.0.1:1/x"}, "no connection"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_two(
    arguments: list[str], environment: dict[str, str], said: str
) -> None:
    Path("sources.toml").write_text("nonsense = 1\n")
    found = run(*arguments, **environment)
    assert found.exit_code == 2
    assert said in found.stderr.replace("\n", " ")
    assert "hidden" not in found.stderr
    assert "Traceback" not in found.stderr


def test_a_short_horizon_is_accepted_on_purpose() -> None:
    environment = {"DEDUP_HORIZON_DAYS": "7", "PAYLOAD_RETENTION_DAYS": "7", "ALLOW_SHORT_HORIZON": "true"}
    assert run("check-config", **environment).exit_code == 0


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_a_taken_port_is_one_line_before_anything_is_started(command: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = run(command, "--port", str(taken.getsockname()[1]), DATABASE_URL="postgresql://x@127.0.0.1:1/x")
    assert found.exit_code == 2
    assert "choose another with --host or --port" in found.stderr
    assert not (tmp_path / ".oncehook").exists()


async def test_migrations_may_race(server: str, rows: Rows) -> None:
    name = f"race_{free_port()}"
    await rows.connection.execute(f"CREATE DATABASE {name}")
    url = server.replace("/postgres?", f"/{name}?")
    command = [sys.executable, "-m", "app", "migrate"]
    racers = [
        await asyncio.create_subprocess_exec(*command, env=os.environ | {"DATABASE_URL": url}, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    said = await asyncio.gather(*(racer.communicate() for racer in racers))
    assert [racer.returncode for racer in racers] == [0] * 4
    assert {out for out, _ in said} == {b"The schema is up to date.\n"}
    await rows.connection.execute(f"DROP DATABASE {name}")


@contextmanager
def developing(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "app", "dev", "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    popen = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield popen
    finally:
        popen.send_signal(signal.SIGTERM)
        popen.wait(PATIENCE_SECONDS)


async def test_dev_starts_from_nothing_and_a_restart_keeps_secrets_and_rows(tmp_path: Path) -> None:
    port = free_port()

    async def ready() -> bool:
        try:
            return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    env = tmp_path / ".oncehook" / "dev.env"
    event = subscription("evt_1", "active", kind="created")
    async with httpx.AsyncClient() as client:
        with developing(tmp_path, port):
            await until(ready)
            written = read_dev_env(env)
            assert stat.S_IMODE(env.stat().st_mode) == 0o600
            assert written["ONCEHOOK_URL"] == f"http://127.0.0.1:{port}"
            assert {"STRIPE_WEBHOOK_SECRETS", "GITHUB_WEBHOOK_SECRETS", "DATABASE_URL"} < written.keys()
            sent = await asyncio.to_thread(run, "send", "stripe", "lifecycle", "--shuffle", "--duplicates", "3")
            assert sent.exit_code == 0, sent.output
            unsigned = await post(client, event, f"http://127.0.0.1:{port}/webhooks/stripe")
            assert unsigned.status_code == 401
        with developing(tmp_path, port):
            await until(ready)
            assert read_dev_env(env) == written
            connection = await asyncpg.connect(written["DATABASE_URL"])
            assert await connection.fetchval("SELECT status FROM subscriptions") == "canceled"
            await connection.close()


async def test_dev_with_a_database_starts_none_and_takes_the_secrets_that_are_set(
    database_url: str, tmp_path: Path
) -> None:
    port = free_port()
    environment = {"DATABASE_URL": database_url, "STRIPE_WEBHOOK_SECRETS": SECRET.decode()}
    command = [sys.executable, "-m", "app", "dev", "--port", str(port), "--workers", "2"]
    popen = subprocess.Popen(  # noqa: ASYNC220
        command, cwd=tmp_path, env=os.environ | environment | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
    )
    try:
        async with httpx.AsyncClient() as client:

            async def ready() -> bool:
                try:
                    return (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(ready)
            events = [subscription(f"evt_{n}", "active", object_id=f"sub_{n}", kind="created") for n in range(40)]
            for event in events:
                async with httpx.AsyncClient() as fresh:  # another connection, so perhaps another worker
                    answer = await post(fresh, event, f"http://127.0.0.1:{port}/webhooks/stripe")
                    assert answer.json()["outcome"] == "applied"
            text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    finally:
        popen.send_signal(signal.SIGTERM)
        popen.wait(PATIENCE_SECONDS)
    assert 'oncehook_deliveries_total{outcome="applied",reason="first_heard",source="stripe"} 40.0' in text
    assert not (tmp_path / ".oncehook" / "pg18").exists()
    assert read_dev_env(tmp_path / ".oncehook" / "dev.env")["STRIPE_WEBHOOK_SECRETS"] == SECRET.decode()
