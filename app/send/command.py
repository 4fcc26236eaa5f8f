"""`oncehook send`: sign and send realistic events to a running service, and show what they became."""

import asyncio
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import asyncpg
import httpx
import orjson
import typer
from dotenv import dotenv_values
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from app.clock import utc_now
from app.db.engine import Database
from app.errors import ConfigurationError, OncehookError
from app.send.client import Sent, Target, deliver
from app.send.files import bodies_of
from app.send.queries import Made, made_by
from app.send.report import show_outcomes, show_rows
from app.send.stripe_events import lifecycle, printed

DEV_ENV = Path(".oncehook/dev.env")
"""What `oncehook dev` wrote down: its secrets, its database and its address."""

_PROVIDERS = {"stripe": {"lifecycle": lifecycle}}


def send(
    what: Annotated[list[str], typer.Argument(help="`stripe lifecycle`, or a file of events.")],
    *,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Deliver in random order.")] = False,
    duplicates: Annotated[int, typer.Option(min=0, max=100, help="Further deliveries of each event.")] = 0,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many lives.")] = 1,
    as_is: Annotated[bool, typer.Option("--as-is", help="Keep a file's ids and times.")] = False,
    url: Annotated[str | None, typer.Option(help="The service; default: what `oncehook dev` listens on.")] = None,
    source: Annotated[str, typer.Option(help="The inlet, POST /webhooks/{source}.")] = "stripe",
    seed: Annotated[int | None, typer.Option(help="Make ids and order repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
) -> None:
    """Sign and send events to a running service; then show the outcomes and the rows they made.

    The secret is the first of STRIPE_WEBHOOK_SECRETS, from the environment or `.oncehook/dev.env`; it is no option,
    because process lists show those.
    """
    errors = Console(stderr=True)
    try:
        known = _environment()
        rng = random.Random(seed)  # noqa: S311  (ids of test events)
        bodies = _bodies(what, rng, count=count, as_is=as_is)
        deliveries = [body for body in bodies for _ in range(duplicates + 1)]
        if shuffle:
            rng.shuffle(deliveries)
        base = (url or known.get("ONCEHOOK_URL") or "http://127.0.0.1:8000").rstrip("/")
        target = Target(f"{base}/webhooks/{source}", _secret(known))
        sent, made = asyncio.run(_send(target, deliveries, None if as_json else known.get("DATABASE_URL"), errors))
    except OncehookError as error:
        errors.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(orjson.dumps(sent).decode())
    else:
        _show(Console(), sent, made)
    if not all(one.taken for one in sent):
        raise typer.Exit(1)


def _show(console: Console, sent: Sequence[Sent], made: Made | None) -> None:
    show_outcomes(console, sent)
    if made is None:
        console.print("The service's database is not known or cannot be read from here, so its rows are not shown.")
    else:
        show_rows(console, made)


async def _send(
    target: Target, deliveries: Sequence[bytes], database_url: str | None, progress_on: Console
) -> tuple[list[Sent], Made | None]:
    with Progress(console=progress_on, transient=True) as progress:
        task = progress.add_task(f"Sending to {target.url}", total=len(deliveries))
        async with httpx.AsyncClient(timeout=30) as client:
            sent = await deliver(client, target, deliveries, utc_now, told=lambda: progress.advance(task))
    return sent, await _made(database_url, sorted({one.event_id for one in sent}))


async def _made(database_url: str | None, event_ids: Sequence[str]) -> Made | None:
    """The rows; None where they cannot be read, whatever the cause: the answers are in and must still be shown."""
    if database_url is None:
        return None
    try:
        database = Database.connect(database_url, pool_size=2)
        try:
            return await made_by(database, event_ids)
        finally:
            await database.close()
    except (OncehookError, asyncpg.PostgresError):
        return None


def _bodies(what: Sequence[str], rng: random.Random, *, count: int, as_is: bool) -> list[bytes]:
    """The bodies of a provider's scenario, or of a file."""
    scenarios = _PROVIDERS.get(what[0])
    if scenarios is None:
        if len(what) > 1:
            message = f"there is no provider {what[0]!r} here; known: {', '.join(_PROVIDERS)}"
            raise ConfigurationError(message)
        return bodies_of(Path(what[0]), utc_now(), rng, as_is=as_is)
    scenario = scenarios.get(what[1]) if len(what) == 2 else None  # noqa: PLR2004
    if scenario is None:
        message = f"say which events of {what[0]}: {', '.join(scenarios)}"
        raise ConfigurationError(message)
    return [printed(event) for _ in range(count) for event in scenario(utc_now(), rng)]


def _environment() -> dict[str, str]:
    """The environment, over what `oncehook dev` wrote down."""
    return read_dev_env(DEV_ENV) | {name: value for name, value in os.environ.items() if value}


def read_dev_env(path: Path) -> dict[str, str]:
    """The settings that `oncehook dev` wrote down, empty where it has not run; a shell reads the same file."""
    return {name: value for name, value in dotenv_values(path, interpolate=False).items() if value}


def _secret(known: dict[str, str]) -> bytes:
    first = known.get("STRIPE_WEBHOOK_SECRETS", "").split(",")[0].strip()
    if not first:
        message = "no secret to sign with: start `oncehook dev` here, or set STRIPE_WEBHOOK_SECRETS"
        raise ConfigurationError(message)
    label, colon, secret = first.partition(":")
    return (first if first.startswith("whsec_") or not colon or not label else secret).encode()
