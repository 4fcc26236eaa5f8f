"""The application: reads the settings, puts the parts together, and starts and stops what runs beside requests."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from fastapi import FastAPI

from app import logs
from app.clock import utc_now
from app.db import partitions
from app.db.engine import Database
from app.db.schema import known_revisions
from app.errors import ConfigurationError
from app.inbox.batch import Batcher
from app.inbox.receive import Receiver
from app.jobs.loop import Job, run
from app.providers import PROVIDERS
from app.providers.base import Delivery, Source
from app.providers.sources import configured_sources
from app.settings import Settings
from app.web.body import Memory
from app.web.health import Health
from app.web.openapi import document_webhooks
from app.web.webhooks import PREFIX, Webhooks

log = structlog.get_logger()

_PARTITIONS_EVERY_SECONDS = 3600.0


@dataclass(slots=True)
class Service:
    """All parts of one process, put together; `app` is what the server calls."""

    app: "Application"
    database: Database
    receiver: Receiver
    batcher: Batcher
    sources: dict[str, Source]


class Application:
    """The ASGI application: webhooks go straight to their endpoint, everything else through FastAPI."""

    def __init__(self, webhooks: Webhooks, api: FastAPI) -> None:
        self.webhooks = webhooks
        self.api = api

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request, or run the application's life."""
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            await self.webhooks(scope, receive, send)
        else:
            await self.api(scope, receive, send)


def create_app() -> Application:
    """What uvicorn starts in every worker."""
    settings = Settings()
    logs.configure(settings.log_level, settings.log_format)
    return build(settings).app


def sources_of(settings: Settings) -> dict[str, Source]:
    """The inlets that the settings name.

    Raises:
        ConfigurationError: one of them cannot work.
    """
    secrets = {"stripe": settings.stripe_webhook_secrets, "github": settings.github_webhook_secrets}
    return configured_sources(
        {provider: [secret.get_secret_value() for secret in given] for provider, given in secrets.items()},
        settings.sources_file,
        os.environ,
    )


def build(settings: Settings) -> Service:
    """Put the parts together; nothing runs and no connection is opened yet.

    Raises:
        ConfigurationError: the settings cannot work.
    """
    if settings.database_url is None:
        message = "DATABASE_URL is not set; `oncehook dev` starts a PostgreSQL of its own"
        raise ConfigurationError(message)
    sources = sources_of(settings)
    database = Database.connect(settings.database_url.get_secret_value(), pool_size=settings.database_pool_size)
    retention = timedelta(days=settings.payload_retention_days)
    receiver = Receiver(database, PROVIDERS, sources, utc_now, retention)

    async def make_partitions(deliveries: Sequence[Delivery]) -> None:
        today = utc_now().date()
        days = {today, today + timedelta(days=1), *(today - timedelta(days=n) for n in (0, 1))}
        await partitions.ensure(database, weeks={delivery.week for delivery in deliveries}, days=days)

    batcher = Batcher(receiver.receive, make_partitions, queue_max_events=settings.queue_max_events)
    memory = Memory(settings.max_bytes_in_flight)
    webhooks = Webhooks(sources, PROVIDERS, batcher, memory, utc_now, settings.body_timeout_seconds)
    jobs = [Job("partitions", lambda: partitions.ensure_ahead(database, utc_now().date()), _PARTITIONS_EVERY_SECONDS)]

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        stopping = asyncio.Event()
        running = [asyncio.create_task(run(job, stopping)) for job in jobs]
        log.info("started", sources=sorted(sources))
        yield
        stopping.set()
        await batcher.stop()
        await asyncio.gather(*running)
        await database.close()
        log.info("stopped")

    api = FastAPI(
        title="oncehook",
        summary="Webhooks, verified and applied to PostgreSQL exactly once and in order.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    api.include_router(Health(database, known_revisions()).routes())
    document_webhooks(api)
    return Service(Application(webhooks, api), database, receiver, batcher, sources)
