"""The command line: serve, dev, migrate, send and check-config."""

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from typing import Annotated

import typer
import uvicorn
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from app.clock import utc_now
from app.db import embedded
from app.db.schema import prepare
from app.db.url import dsn_and_arguments
from app.errors import ConfigurationError, OncehookError
from app.main import sources_of
from app.providers.base import Source
from app.send.command import DEV_ENV, read_dev_env, send
from app.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Receive webhooks, exactly once and in order.")
app.command()(send)

DEV_FOLDER = DEV_ENV.parent
"""Where `dev` keeps its PostgreSQL and its secrets."""

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Processes behind the one port; one a core is enough.")]

_errors = Console(stderr=True)


@app.command()
def serve(host: Host = "127.0.0.1", port: Port = 8000, workers: Workers = 1) -> None:
    """Run the service against DATABASE_URL, whose schema `migrate` has prepared."""
    with _told():
        settings = _settings()
        _database_url(settings, "`oncehook dev` starts a PostgreSQL of its own")
        _refuse_taken_port(host, port)
        _sources(settings)
        _serve(host, port, workers)


@app.command()
def dev(host: Host = "127.0.0.1", port: Port = 8000, workers: Workers = 1) -> None:
    """Run everything on this machine: PostgreSQL (unless DATABASE_URL is set), migrations, secrets, the service."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the server's own shutdown is not the last word
    with _told(), contextlib.ExitStack() as stack:
        _refuse_taken_port(host, port)
        settings = _settings()
        if settings.database_url is None:
            DEV_FOLDER.mkdir(exist_ok=True)
            server = stack.enter_context(embedded.running(DEV_FOLDER, bindir=settings.pg_bindir))
            os.environ["DATABASE_URL"] = server.url
        else:
            os.environ["DATABASE_URL"] = settings.database_url.get_secret_value()
        _dev_environment(settings, f"http://{host}:{port}")
        settings = _settings()
        _sources(settings)
        asyncio.run(prepare(os.environ["DATABASE_URL"], utc_now().date()))
        _errors.print(
            f"oncehook listens on http://{host}:{port}; try: [bold]oncehook send stripe lifecycle --shuffle[/]"
        )
        _serve(host, port, workers)


@app.command()
def migrate() -> None:
    """Bring the schema of DATABASE_URL to this version and make its partitions; replicas may race."""
    with _told():
        url = _database_url(_settings(), "there is nothing to migrate")
        asyncio.run(prepare(url, utc_now().date()))
        typer.echo("The schema is up to date.")


@app.command()
def check_config() -> None:
    """Read every setting and source, and say what they come to or what is wrong with them; secrets are not shown."""
    with _told():
        settings = _settings()
        sources = _sources(settings)
        table = Table("source", "provider", "namespace", "mode", "secrets", "limit", "deadline", title="Sources")
        for source in sources.values():
            labels = ", ".join(secret.label for secret in source.secrets)
            limit, deadline = f"{source.max_body_bytes:,} B", f"{source.deadline_seconds:g} s"
            namespace = source.namespace or "self"
            table.add_row(source.name, source.provider, namespace, source.livemode, labels, limit, deadline)
        Console().print(table)
        if not sources:
            typer.echo("No source is configured: set STRIPE_WEBHOOK_SECRETS, GITHUB_WEBHOOK_SECRETS or SOURCES_FILE.")
        if settings.database_url is None:
            typer.echo("DATABASE_URL is not set: only `oncehook dev` works.")
        else:
            _database_url(settings, "")


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell a person about an error in one line and leave with status 2."""
    try:
        yield
    except OncehookError as error:
        _errors.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error


def _settings() -> Settings:
    """The settings.

    Raises:
        ConfigurationError: one of them is wrong; its value, which may be a secret, is not repeated.
    """
    try:
        return Settings()
    except ValidationError as error:
        found = [f"{'.'.join(str(part) for part in one['loc']).upper()}: {one['msg']}" for one in error.errors()]
        raise ConfigurationError("; ".join(found)) from None


def _database_url(settings: Settings, otherwise: str) -> str:
    """The URL, which can be read; looked at here, for a worker that cannot start is only started again.

    Raises:
        ConfigurationError: it is not set, and `otherwise` says what follows; or it cannot be read.
    """
    if settings.database_url is None:
        message = f"DATABASE_URL is not set: {otherwise}"
        raise ConfigurationError(message)
    url = settings.database_url.get_secret_value()
    dsn_and_arguments(url)
    return url


def _refuse_taken_port(host: str, port: int) -> None:
    """Say before anything is started or written down that nobody could be served.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        message = f"{host}:{port} cannot be listened on ({error.strerror}); choose another with --host or --port"
        raise ConfigurationError(message) from error


def _sources(settings: Settings) -> dict[str, Source]:
    return sources_of(settings)


def _dev_environment(settings: Settings, url: str) -> None:
    """Make secrets where none are set, and write down for `send` what this service runs with."""
    DEV_FOLDER.mkdir(exist_ok=True)
    known = read_dev_env(DEV_ENV)
    for name, found, prefix in (
        ("STRIPE_WEBHOOK_SECRETS", settings.stripe_webhook_secrets, "whsec_"),
        ("GITHUB_WEBHOOK_SECRETS", settings.github_webhook_secrets, ""),
    ):
        if found:
            known[name] = ",".join(secret.get_secret_value() for secret in found)
        else:
            os.environ[name] = known.setdefault(name, f"{prefix}{secrets.token_urlsafe(24)}")
    known |= {"DATABASE_URL": os.environ["DATABASE_URL"], "ONCEHOOK_URL": url}
    draft = DEV_ENV.with_suffix(".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.writelines(f"{name}={shlex.quote(value)}\n" for name, value in known.items())
    draft.replace(DEV_ENV)


def _serve(host: str, port: int, workers: int) -> None:
    """Run uvicorn; with several workers their metrics meet in a folder that one scrape reads."""
    folder = tempfile.mkdtemp(prefix="oncehook-metrics-") if workers > 1 else None
    if folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    try:
        uvicorn.run(
            "app.main:create_app",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            access_log=False,
            log_config=None,
            loop="uvloop" if sys.platform != "win32" else "asyncio",
            http="httptools",
            server_header=False,
            date_header=True,
        )
    finally:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
