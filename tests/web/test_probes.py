"""What orchestrators and Prometheus are told."""

import time

import httpx
import pytest

from app.db.schema import SchemaState, known_revisions, state_of
from tests.events import subscription
from tests.service import Rows, Served, serving


async def test_a_current_schema_is_ready_and_alive(served: Served) -> None:
    assert (await served.client.get("/livez")).json() == {"status": "alive"}
    ready = await served.client.get("/readyz")
    assert (ready.status_code, ready.json()["schema"]) == (200, "current")


async def test_a_newer_schema_is_ready_with_a_warning(
    served: Served, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    await rows.connection.execute("UPDATE alembic_version SET version_num = '9999'")
    ready = await served.client.get("/readyz")
    assert (ready.status_code, ready.json()["schema"]) == (200, "newer")
    assert "schema_newer_than_code" in capsys.readouterr().out


async def test_an_unmigrated_database_is_not_ready(served: Served, rows: Rows) -> None:
    await rows.connection.execute("DELETE FROM alembic_version")
    ready = await served.client.get("/readyz")
    assert (ready.status_code, ready.json()["schema"]) == (503, "older")
    await rows.connection.execute("DROP TABLE alembic_version")
    assert (await served.client.get("/readyz")).status_code == 503


async def test_a_known_older_revision_is_older(served: Served) -> None:
    known = ("0002", *known_revisions())
    assert await state_of(served.service.database, known) is SchemaState.OLDER


async def test_an_unreachable_database_is_told_quickly_and_stops_neither_livez_nor_metrics() -> None:
    async with serving("postgresql://nobody@127.0.0.1:9/nothing") as served:
        started = time.monotonic()
        ready = await served.client.get("/readyz")
        assert (ready.status_code, ready.json()["database"]) == (503, "unavailable")
        assert time.monotonic() - started < 3
        assert (await served.client.get("/livez")).status_code == 200
        assert (await served.client.get("/metrics")).status_code == 200
        refused = await served.post(subscription("evt_1", "active"))
        assert refused.status_code == 503
        assert refused.json()["code"] in {"database_unavailable", "deadline_exceeded"}


async def test_metrics_count_outcomes_and_undecided_rows(served: Served) -> None:
    for event in (
        subscription("evt_1", "active", before="past_due", object_id="sub_metrics"),
        subscription("evt_2", "past_due", before="active", object_id="sub_metrics"),
    ):
        await served.post(event)
    text = (await served.client.get("/metrics")).text
    assert "oncehook_ties_undecided 1.0" in text
    for name in ("oncehook_batch_size_bucket", "oncehook_answer_seconds_count", "oncehook_event_lag_seconds_sum"):
        assert name in text


async def test_the_api_describes_the_webhook_route_beside_its_own(served: Served) -> None:
    described = (await served.client.get("/openapi.json")).json()
    again = (await served.client.get("/openapi.json")).json()
    assert described == again
    assert "503" in described["paths"]["/webhooks/{source}"]["post"]["responses"]
    assert "/readyz" in described["paths"]
    assert (await served.client.get("/docs")).status_code == 200
    assert (await served.client.get("/nowhere")).status_code == httpx.codes.NOT_FOUND
