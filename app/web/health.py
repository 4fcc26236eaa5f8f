"""`/livez`, `/readyz` and `/metrics`: what orchestrators and Prometheus ask."""

import asyncio
from dataclasses import dataclass

import structlog
from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from app import metrics
from app.billing.queries import count_open
from app.db.engine import Database
from app.db.schema import SchemaState, state_of

log = structlog.get_logger()

_PATIENCE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Health:
    """What the probes look at."""

    database: Database
    revisions: tuple[str, ...]

    def routes(self) -> APIRouter:
        """The three routes."""
        router = APIRouter(tags=["health"])
        router.add_api_route("/livez", self.livez, methods=["GET"], summary="The process answers")
        router.add_api_route("/readyz", self.readyz, methods=["GET"], summary="The database takes deliveries")
        router.add_api_route("/metrics", self.metrics, methods=["GET"], summary="Prometheus text format")
        return router

    async def livez(self) -> dict[str, str]:
        """Alive; says nothing of the database, so that a database's fault restarts no replica."""
        return {"status": "alive"}

    async def readyz(self) -> JSONResponse:
        """Ready when the database is reachable and its schema at or past the revision that this code needs."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                schema = await state_of(self.database, self.revisions)
        except Exception as error:  # noqa: BLE001  (whatever it is, the answer is "not ready")
            log.warning("not_ready", error=type(error).__name__)
            return JSONResponse({"status": "not ready", "database": "unavailable"}, status_code=503)
        if schema is SchemaState.OLDER:
            return JSONResponse({"status": "not ready", "database": "reachable", "schema": schema}, status_code=503)
        if schema is SchemaState.NEWER:
            log.warning("schema_newer_than_code", known=self.revisions[0])
        return JSONResponse({"status": "ready", "database": "reachable", "schema": schema})

    async def metrics(self) -> Response:
        """All metrics; one scrape sums all workers. The count of undecided rows is asked for at the scrape."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                metrics.TIES_UNDECIDED.set(await count_open(self.database))
        except Exception as error:  # noqa: BLE001  (whatever the database says, the other metrics are told)
            log.warning("ties_not_counted", error=type(error).__name__)
        return Response(metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")
