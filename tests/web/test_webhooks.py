"""The contract of `POST /webhooks/{source}`: every answer, the order of the checks, and what none gives away."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from copy import deepcopy
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import logs, metrics
from app.clock import utc_now
from app.web.problems import CONTENT_TYPE
from tests.events import HOUR_AGO, SECRET, body_of, headers_of, subscription
from tests.held import EMPTY_ROWS, held, waiting
from tests.service import Rows, Served, process, serving, until
from tests.shared_data import payload, stripe_events

DAY = 86_400
NOTHING = {"processed_events": 0, "inbox": 0, "subscriptions": 0, "outbox": 0}
EVENT = subscription("evt_1", "active", kind="created")
JSON = {"content-type": "application/json"}


def sources(folder: Path, *tables: Mapping[str, Any]) -> Path:
    """A file of sources, each with the tests' secret; `name` is `stripe` and `provider` too unless given."""
    path = folder / "sources.toml"
    lines: list[str] = []
    for table in tables:
        values = {"name": "stripe", "provider": "stripe", "secrets": [SECRET.decode()], **table}
        lines += ["[[sources]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path.write_text("\n".join(lines))
    return path


def from_file(folder: Path, *tables: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for `serving` under which these are the sources."""
    return {"stripe_webhook_secrets": "", "sources_file": sources(folder, *tables)}


def thin(event_id: str, *, twin: str | None = "evt_1") -> dict[str, Any]:
    return {
        "id": event_id,
        "object": "v2.core.event",
        "type": "v1.customer.subscription.created",
        "created": (utc_now() - timedelta(hours=1)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "livemode": False,
        "related_object": {"id": "sub_1", "type": "subscription", "url": "/v1/subscriptions/sub_1"},
        "snapshot_event": twin,
    }


def assert_problem(answer: httpx.Response, status: int, code: str) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code)
    assert answer.headers["content-type"] == CONTENT_TYPE
    assert problem["type"] == "about:blank"
    assert problem["title"]
    assert problem["detail"]
    assert ("retry-after" in answer.headers) == (status == 503)


async def assert_told(served: Served, event: Any, outcome: str, reason: str, path: str = "/webhooks/stripe") -> None:
    answer = await served.post(event, path)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"outcome": outcome, "reason": reason, "event_id": event["id"]}
    assert answer.headers["content-type"] == "application/json"


def as_bytes(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


class Chunks:
    """A body that is sent in chunks; `sent` counts how many were asked for."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            self.sent += 1
            yield chunk


class Dripping:
    """A body whose end never comes."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()


# --- what became of an event


async def test_headers_past_their_limit_are_413_and_leave_nothing(served: Served, rows: Rows) -> None:
    answer = await served.post(subscription("evt_1", "active"), **{"x-odd": "a" * 40_000})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert set((await rows.counts()).values()) == {0}


async def test_an_applied_event_is_told_with_its_reason(served: Served, rows: Rows) -> None:
    await assert_told(served, EVENT, "applied", "first_heard")
    assert await rows.counts() == {"processed_events": 1, "inbox": 1, "subscriptions": 1, "outbox": 2}


async def test_an_older_event_is_stale_and_recorded(served: Served, rows: Rows) -> None:
    await served.post(subscription("evt_2", "active", at=9, before="trialing"))
    await assert_told(served, subscription("evt_1", "trialing", at=3, before="incomplete"), "stale", "older")
    assert await rows.one("SELECT outcome FROM inbox WHERE event_id = 'evt_1'") == "stale"
    assert await rows.one("SELECT status FROM subscriptions") == "active"


async def test_an_event_seen_before_is_a_duplicate(served: Served) -> None:
    await served.post(EVENT)
    await assert_told(served, EVENT, "duplicate", "seen_before")


async def test_a_type_without_a_projection_is_recorded_and_ignored(served: Served, rows: Rows) -> None:
    await assert_told(served, {**EVENT, "type": "charge.succeeded"}, "ignored", "no_projection")
    assert await rows.counts() == {"processed_events": 1, "inbox": 1, "subscriptions": 0, "outbox": 0}
    assert await rows.one("SELECT outcome FROM processed_events") == "ignored"


async def test_a_subscription_without_an_id_is_ignored(served: Served) -> None:
    event = deepcopy(EVENT)
    del event["data"]["object"]["id"]
    await assert_told(served, event, "ignored", "no_object_id")


async def test_an_event_of_the_other_mode_than_its_source_expects_is_ignored(
    database_url: str, rows: Rows, tmp_path: Path
) -> None:
    async with serving(database_url, **from_file(tmp_path, {"livemode": "live"})) as served:
        await assert_told(served, EVENT, "ignored", "wrong_mode")
        await assert_told(served, {**EVENT, "livemode": True}, "applied", "first_heard")
    assert await rows.one("SELECT namespace FROM subscriptions") == "stripe:self:live"


async def test_a_thin_event_waits_for_its_snapshot_which_is_applied(served: Served) -> None:
    await assert_told(served, thin("evt_thin"), "ignored", "thin_waits_for_snapshot")
    await assert_told(served, EVENT, "applied", "first_heard")
    await assert_told(served, thin("evt_thin"), "duplicate", "seen_before")


async def test_a_thin_event_whose_snapshot_was_heard_is_a_duplicate_of_it(served: Served, rows: Rows) -> None:
    await served.post(EVENT)
    await assert_told(served, thin("evt_thin"), "duplicate", "thin_twin_known")
    await assert_told(served, thin("evt_lone", twin=None), "ignored", "thin_waits_for_snapshot")
    assert await rows.one("SELECT count(*) FROM inbox") == 3


async def test_an_event_that_cannot_be_projected_is_parked_and_its_redelivery_is_a_new_attempt(
    served: Served, rows: Rows
) -> None:
    event = deepcopy(EVENT)
    del event["data"]["object"]["status"]
    for attempt in (1, 2, 3):
        await assert_told(served, event, "parked", "projection_failed")
        assert await rows.all("SELECT outcome, attempts FROM inbox") == [{"outcome": "parked", "attempts": attempt}]
        assert await rows.all("SELECT outcome, duplicates FROM processed_events") == [
            {"outcome": "parked", "duplicates": 0}
        ]
    assert await rows.one("SELECT count(*) FROM subscriptions") == 0
    decision = json.loads(await rows.one("SELECT decision FROM inbox"))
    assert decision == {"error": "ProjectionError", "detail": "`status` is missing"}


async def test_a_parked_event_whose_redelivery_can_be_projected_is_applied(served: Served, rows: Rows) -> None:
    broken = deepcopy(EVENT)
    del broken["data"]["object"]["status"]
    await assert_told(served, broken, "parked", "projection_failed")
    await assert_told(served, EVENT, "applied", "first_heard")
    assert await rows.all("SELECT outcome, attempts FROM inbox") == [{"outcome": "applied", "attempts": 2}]
    assert await rows.one("SELECT outcome FROM processed_events") == "applied"


async def test_an_event_below_the_ledgers_floor_is_kept_for_the_operator_and_never_applied(
    served: Served, rows: Rows
) -> None:
    old = subscription("evt_old", "active", at=-60 * DAY, kind="created")
    partitions = await rows.one("SELECT count(*) FROM pg_inherits")
    for attempt in (1, 2):
        await assert_told(served, old, "expired", "below_floor")
        assert await rows.all("SELECT outcome, attempts FROM inbox") == [{"outcome": "expired", "attempts": attempt}]
    assert await rows.counts() == NOTHING | {"inbox": 1}
    assert await rows.one("SELECT count(*) FROM pg_inherits") == partitions


async def test_a_ledger_row_below_a_risen_floor_still_makes_a_duplicate(served: Served, rows: Rows) -> None:
    event = subscription("evt_1", "active", at=-20 * DAY, kind="created")
    await assert_told(served, event, "applied", "first_heard")
    await rows.connection.execute("UPDATE ledger_floor SET week = week + 28")
    await assert_told(served, event, "duplicate", "seen_before")
    assert await rows.one("SELECT duplicates FROM processed_events") == 1


async def test_a_time_too_far_ahead_is_parked_without_a_ledger_row_or_a_partition(served: Served, rows: Rows) -> None:
    ahead = subscription("evt_ahead", "active", at=9 * DAY, kind="created")
    partitions = await rows.one("SELECT count(*) FROM pg_inherits")
    for attempt in (1, 2):
        await assert_told(served, ahead, "parked", "time_ahead")
        assert await rows.one("SELECT attempts FROM inbox") == attempt
    assert await rows.counts() == NOTHING | {"inbox": 1}
    assert await rows.one("SELECT count(*) FROM pg_inherits") == partitions


async def test_the_made_up_time_of_a_test_clock_is_taken_as_it_is(served: Served, rows: Rows) -> None:
    event = subscription("evt_1", "active", at=400 * DAY, kind="created")
    event["data"]["object"]["test_clock"] = "clock_1"
    await assert_told(served, event, "applied", "first_heard")
    await assert_told(served, event, "duplicate", "seen_before")
    assert await rows.one("SELECT to_char(week, 'YYYY-MM-DD') FROM processed_events") == "1970-01-05"


# --- what is refused


UNPROVED: list[tuple[dict[str, str], str]] = [
    ({"stripe-signature": ""}, "signature_missing"),
    ({"stripe-signature": "nonsense"}, "signature_malformed"),
    ({"stripe-signature": f"t=1,t=2,v1={'0' * 64}"}, "signature_malformed"),
    ({"stripe-signature": f"t={HOUR_AGO},v1={'0' * 64}"}, "signature_mismatch"),
    (headers_of(body_of(EVENT), secret=b"whsec_of_somebody_else"), "signature_mismatch"),
    (headers_of(body_of(EVENT) + b" "), "signature_mismatch"),
    (headers_of(body_of(EVENT), at=utc_now() - timedelta(seconds=3600)), "timestamp_out_of_tolerance"),
    (headers_of(body_of(EVENT), at=utc_now() + timedelta(seconds=3600)), "timestamp_out_of_tolerance"),
]


async def test_a_request_that_is_not_proved_is_refused_and_leaves_nothing(served: Served, rows: Rows) -> None:
    unsigned = await served.client.post("/webhooks/stripe", content=body_of(EVENT), headers=JSON)
    assert_problem(unsigned, 401, "signature_missing")
    for change, code in UNPROVED:
        assert_problem(await served.post(EVENT, **change), 401, code)
    assert await rows.counts() == NOTHING


@pytest.mark.parametrize("secret", [SECRET, b"whsec_of_the_rotation"])
async def test_either_secret_of_a_rotation_proves_a_request(database_url: str, rows: Rows, secret: bytes) -> None:
    secrets = f"old:{SECRET.decode()},new:whsec_of_the_rotation"
    async with serving(database_url, stripe_webhook_secrets=secrets) as served:
        body = body_of(EVENT)
        answer = await served.client.post("/webhooks/stripe", content=body, headers=headers_of(body, secret=secret))
    assert answer.status_code == 200
    assert await rows.one("SELECT secret_label FROM inbox") == ("old" if secret == SECRET else "new")


NOT_JSON = [
    b"",
    b"nonsense",
    b"{",
    b'{"a": NaN}',
    b"\xff\xfe",
    b"[" * 129 + b"]" * 129,
    b'{"a":' * 129 + b"1" + b"}" * 129,
]
NOT_AN_EVENT = [
    b"null",
    b"[]",
    b'"text"',
    b"{}",
    body_of(EVENT["data"]["object"]),
    body_of({**EVENT, "object": "charge"}),
    body_of({**EVENT, "id": None}),
    body_of({**EVENT, "id": ""}),
    body_of({**EVENT, "id": "e" * 256}),
    body_of({**EVENT, "id": "evt_\x00"}),
    body_of({**EVENT, "id": 7}),
    body_of({**EVENT, "type": ""}),
    body_of({**EVENT, "created": "yesterday"}),
    body_of({**EVENT, "created": -1}),
    body_of({**EVENT, "created": 2**60}),
    body_of({**EVENT, "created": True}),
    body_of({**EVENT, "data": {}}),
    body_of({**EVENT, "data": {"object": "sub_1"}}),
    body_of({**EVENT, "livemode": "yes"}),
    body_of({**thin("evt_thin"), "created": HOUR_AGO}),
    body_of({**thin("evt_thin"), "id": None}),
]


async def test_a_signed_body_that_is_no_event_is_refused_and_leaves_nothing(served: Served, rows: Rows) -> None:
    for body in NOT_JSON:
        assert_problem(await served.post(body), 400, "not_json")
    for body in NOT_AN_EVENT:
        assert_problem(await served.post(body), 400, "not_an_event")
    assert await rows.counts() == NOTHING


async def test_nesting_up_to_the_limit_is_taken(served: Served) -> None:
    event = body_of(EVENT)[:-2] + b',"deep":' + b"[" * 127 + b"]" * 127 + b"}"
    assert (await served.post(event)).json()["outcome"] == "applied"
    assert_problem(await served.post(event.replace(b"[]", b"[[]]")), 400, "not_json")


async def test_an_unknown_source_is_not_found(served: Served, rows: Rows) -> None:
    for name in ("unknown", "", "/", "stripe/x", "stripe//", "Stripe", "%00"):
        assert_problem(await served.post(EVENT, f"/webhooks/{name}"), 404, "unknown_source")
    assert await rows.counts() == NOTHING


async def test_other_methods_are_told_which_is_allowed(served: Served) -> None:
    for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = await served.client.request(method, "/webhooks/stripe")
        assert_problem(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "POST"


async def test_head_is_no_allowed_method_either(served: Served) -> None:
    answer = await served.client.head("/webhooks/stripe")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_trailing_slash_makes_no_difference(served: Served) -> None:
    changes: list[dict[str, str]] = [{}, {"stripe-signature": "nonsense"}, {"content-encoding": "gzip"}]
    for change in changes:
        plain, slashed = [await served.post(EVENT, f"/webhooks/{name}", **change) for name in ("stripe", "stripe/")]
        assert plain.status_code == slashed.status_code
        assert plain.json().keys() == slashed.json().keys()
    missing = [await served.post(EVENT, f"/webhooks/{name}") for name in ("nobody", "nobody/")]
    assert missing[0].json() == missing[1].json()


async def test_a_content_length_over_the_limit_or_of_no_number_is_refused_before_the_body(served: Served) -> None:
    for length in ("1000001", "9" * 18, "9" * 30, "-1", "1.5", "0x10", "", "\N{ARABIC-INDIC DIGIT THREE}"):
        chunks = Chunks(b"{", b"}")
        request = served.client.build_request("POST", "/webhooks/stripe", content=chunks)
        request.headers = httpx.Headers(as_bytes(headers_of(b"{}")) | {b"content-length": length.encode()})
        assert_problem(await served.client.send(request), 413, "too_large")
        assert chunks.sent == 0


async def test_a_body_that_outgrows_the_limit_in_chunks_is_refused_without_reading_it_all(
    served: Served, rows: Rows
) -> None:
    chunks = Chunks(*([b"x" * 400_000] * 10))
    answer = await served.client.post("/webhooks/stripe", content=chunks, headers=headers_of(b""))
    assert_problem(answer, 413, "too_large")
    assert answer.headers["connection"] == "close"
    assert chunks.sent == 3
    assert await rows.counts() == NOTHING


async def test_a_body_of_exactly_the_limit_is_taken_whole_or_in_chunks(served: Served) -> None:
    for number, size in enumerate((1_000_000, 1_000_001), start=1):
        event = body_of(subscription(f"evt_{number}", "active", kind="created"))
        body = event + b" " * (size - len(event))
        whole = await served.post(body)
        chunked = await served.client.post(
            "/webhooks/stripe", content=Chunks(body[:7], b"", body[7:]), headers=headers_of(body)
        )
        assert [whole.status_code, chunked.status_code] == ([200, 200] if number == 1 else [413, 413])


async def test_an_encoding_or_a_content_type_that_the_provider_does_not_send_is_refused(
    served: Served, rows: Rows
) -> None:
    for encoding in ("gzip", "br", "identity, gzip", "nonsense"):
        assert_problem(await served.post(EVENT, **{"content-encoding": encoding}), 415, "encoding")
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "", "json"):
        assert_problem(await served.post(EVENT, **{"content-type": content_type}), 415, "content_type")
    assert await rows.counts() == NOTHING


async def test_other_ways_to_write_the_same_headers_are_taken(served: Served) -> None:
    for content_type in ("application/json; charset=utf-8", "Application/JSON"):
        assert (await served.post(EVENT, **{"content-type": content_type})).status_code == 200
    for encoding in ("identity", "Identity", ""):
        assert (await served.post(EVENT, **{"content-encoding": encoding})).status_code == 200


async def test_a_missing_content_type_is_taken(served: Served) -> None:
    body = body_of(EVENT)
    headers = {"stripe-signature": headers_of(body)["stripe-signature"]}
    assert (await served.client.post("/webhooks/stripe", content=body, headers=headers)).status_code == 200


async def test_the_checks_come_in_their_order(database_url: str, tmp_path: Path) -> None:
    limits = from_file(tmp_path, {"max_body_bytes": 2_000_000}) | {"max_bytes_in_flight": 1_000_000}
    async with serving(database_url, **limits) as served:

        async def code(path: str, method: str, body: bytes, **headers: str) -> str:
            answer = await served.client.request(method, path, content=body, headers=headers)
            return str(answer.json()["code"])

        nothing_right = {"content-encoding": "gzip", "content-type": "text/plain", "content-length": "3000000"}
        too_much = {"content-encoding": "gzip", "content-type": "text/plain", "content-length": "1500000"}
        no_memory = JSON | {"content-length": "1500000"}
        assert await code("/webhooks/nobody", "GET", b"", **nothing_right) == "unknown_source"
        assert await code("/webhooks/stripe", "GET", b"", **nothing_right) == "method_not_allowed"
        assert await code("/webhooks/stripe", "POST", b"", **nothing_right) == "too_large"
        assert await code("/webhooks/stripe", "POST", b"", **too_much) == "encoding"
        assert (
            await code("/webhooks/stripe", "POST", b"", **(too_much | {"content-encoding": "identity"}))
            == "content_type"
        )
        assert await code("/webhooks/stripe", "POST", b"", **no_memory) == "overloaded"
        assert await code("/webhooks/stripe", "POST", b"nonsense", **JSON) == "signature_missing"
        assert await code("/webhooks/stripe", "POST", b"nonsense", **headers_of(b"nonsense")) == "not_json"
        assert await code("/webhooks/stripe", "POST", b"{}", **headers_of(b"{}")) == "not_an_event"


# --- limits of memory, queue and time


async def test_full_memory_is_told_at_once_and_let_go_again(database_url: str, rows: Rows, tmp_path: Path) -> None:
    limits = from_file(tmp_path, {"max_body_bytes": 2_000_000}) | {"max_bytes_in_flight": 1_000_000}
    async with serving(database_url, **limits) as served:
        for chunked in (True, False):
            chunks = Chunks(*([b" " * 600_000] * 3))
            headers = headers_of(b"") | ({} if chunked else {"content-length": "1800000"})
            answer = await served.client.post("/webhooks/stripe", content=chunks, headers=headers)
            assert_problem(answer, 503, "overloaded")
            assert chunks.sent == (2 if chunked else 0)
        assert await rows.counts() == NOTHING
        large = body_of(EVENT) + b" " * 900_000
        assert [(await served.post(large)).status_code for _ in range(3)] == [200, 200, 200]
    assert metrics.REGISTRY.get_sample_value("oncehook_bytes_in_flight") == 0


async def test_a_full_queue_is_told_at_once_and_what_it_held_is_applied(
    database_url: str, rows: Rows, tmp_path: Path
) -> None:
    limits = from_file(tmp_path, {"deadline_seconds": 60}) | {"queue_max_events": 1}
    async with serving(database_url, **limits) as served:
        async with held(database_url, EMPTY_ROWS):
            locked = []
            for lane in (1, 2):
                event = subscription(f"evt_{lane}", "active", at=lane, object_id="sub_locked")
                locked.append(asyncio.create_task(served.post(event)))
                await until(lambda lane=lane: waiting(rows, lane))  # type: ignore[misc]
            locked.append(asyncio.create_task(served.post(EVENT | {"id": "evt_3"})))
            await until(lambda: _true(served.service.batcher.queued == 1))
            assert_problem(await served.post(EVENT | {"id": "evt_4"}), 503, "overloaded")
        assert {answer.status_code for answer in await asyncio.gather(*locked)} == {200}
    assert await rows.one("SELECT array_agg(event_id ORDER BY event_id) FROM inbox") == ["evt_1", "evt_2", "evt_3"]


async def test_past_the_deadline_the_answer_is_503_and_nothing_of_it_is_stored_later(
    database_url: str, rows: Rows, tmp_path: Path
) -> None:
    slow = {"name": "slow", "deadline_seconds": 60, "namespace": "slow"}
    fast = {"name": "fast", "deadline_seconds": 0.5, "namespace": "fast"}
    async with serving(database_url, **from_file(tmp_path, slow, fast)) as served:
        async with held(database_url, EMPTY_ROWS.replace("self", "slow")):
            lanes = []
            for lane in (1, 2):
                event = subscription(f"evt_{lane}", "active", at=lane, object_id="sub_locked")
                lanes.append(asyncio.create_task(served.post(event, "/webhooks/slow")))
                await until(lambda lane=lane: waiting(rows, lane))  # type: ignore[misc]
            assert_problem(await served.post(EVENT, "/webhooks/fast"), 503, "deadline_exceeded")
        assert {answer.status_code for answer in await asyncio.gather(*lanes)} == {200}
        await assert_told(served, EVENT | {"id": "evt_3"}, "applied", "first_heard", "/webhooks/fast")
    assert await rows.one("SELECT count(*) FROM processed_events WHERE namespace = 'stripe:fast:test'") == 1


async def test_a_lock_on_a_row_is_answered_503_inside_the_deadline(
    database_url: str, rows: Rows, tmp_path: Path
) -> None:
    async with serving(database_url, **from_file(tmp_path, {"deadline_seconds": 1.0})) as served:
        async with held(database_url, EMPTY_ROWS), asyncio.timeout(1.5):
            answer = await served.post(subscription("evt_1", "active", object_id="sub_locked"))
        assert_problem(answer, 503, "database_unavailable")
        assert await rows.counts() == NOTHING
        assert (await served.post(subscription("evt_1", "active", object_id="sub_locked"))).json()[
            "outcome"
        ] == "applied"


async def test_a_body_that_does_not_arrive_in_time_is_408(database_url: str, rows: Rows) -> None:
    async with serving(database_url, body_timeout_seconds=0.05) as served:
        answer = await served.client.post("/webhooks/stripe", content=Dripping(), headers=headers_of(b"{"))
    assert_problem(answer, 408, "body_timeout")
    assert answer.headers["connection"] == "close"
    assert await rows.counts() == NOTHING


async def test_a_client_that_goes_while_it_sends_is_counted_and_leaves_nothing(served: Served, rows: Rows) -> None:
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/webhooks/stripe",
        "headers": [(key.encode(), value.encode()) for key, value in headers_of(b"{").items()],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    gone = metrics.REFUSED.labels("stripe", "client_gone")
    before = gone._value.get()
    await served.service.app(scope, receive, send)
    assert sent == []
    assert gone._value.get() == before + 1
    assert metrics.REGISTRY.get_sample_value("oncehook_bytes_in_flight") == 0
    assert await rows.counts() == NOTHING


async def test_a_database_that_cannot_be_reached_is_503(tmp_path: Path) -> None:
    limits = from_file(tmp_path, {"deadline_seconds": 0.5})
    async with serving("postgresql://nobody@127.0.0.1:1/nothing", **limits) as served, asyncio.timeout(2):
        answer = await served.post(EVENT)
    assert_problem(answer, 503, answer.json()["code"])
    assert answer.json()["code"] in {"database_unavailable", "deadline_exceeded"}


async def test_a_read_only_database_is_503(database_url: str, rows: Rows) -> None:
    name = await rows.one("SELECT current_database()")
    await rows.connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with serving(database_url) as served:
        assert_problem(await served.post(EVENT), 503, "database_unavailable")
    assert await rows.counts() == NOTHING


async def test_a_stopped_service_takes_nothing_new(database_url: str) -> None:
    async with serving(database_url) as served:
        await served.service.batcher.stop()
        assert_problem(await served.post(EVENT), 503, "shutting_down")


async def test_a_fault_of_our_own_is_503_and_only_its_class_is_logged(
    served: Served, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> datetime:
        message = "the canary of a broken clock"
        raise ZeroDivisionError(message)

    served.service.app.webhooks.clock = broken
    assert_problem(await served.post(EVENT), 503, "unavailable")
    written = capsys.readouterr().out
    assert "ZeroDivisionError" in written
    assert "canary" not in written
    assert metrics.REGISTRY.get_sample_value("oncehook_bytes_in_flight") == 0
    assert await rows.counts() == NOTHING


# --- over a real socket


async def test_a_server_closes_a_connection_whose_body_it_did_not_read(database_url: str) -> None:
    async with process(database_url) as server:
        port = int(server.url.rpartition(":")[2])
        for head in (b"Content-Length: 2000000", b"Content-Encoding: gzip\r\nContent-Length: 5"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /webhooks/stripe HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
            async with asyncio.timeout(10):
                answer = await reader.read()
            writer.close()
            assert answer.startswith((b"HTTP/1.1 413", b"HTTP/1.1 415"))
            assert b"connection: close" in answer.lower()


# --- request ids, and what must not be told


async def test_a_sound_request_id_is_echoed_and_another_is_replaced(served: Served) -> None:
    for sound in ("abc-123", "A.b_c:d-1", "x" * 128):
        for event in (EVENT, b"nonsense"):
            answer = await served.post(event, **{"x-request-id": sound})
            assert answer.headers["x-request-id"] == sound
    unsound = ("", "x" * 129, "with space", "a,b", "<script>")
    made = {(await served.post(EVENT, **{"x-request-id": given})).headers["x-request-id"] for given in unsound}
    made.add((await served.post(EVENT)).headers["x-request-id"])
    assert len(made) == len(unsound) + 1
    assert not made & set(unsound)


async def test_request_ids_do_not_tell_events_apart(served: Served) -> None:
    await served.post(EVENT, **{"x-request-id": "one"})
    other_id = await served.post(EVENT, **{"x-request-id": "two"})
    other_event = await served.post({**EVENT, "id": "evt_2"}, **{"x-request-id": "one"})
    assert other_id.json()["outcome"] == "duplicate"
    assert other_event.json()["outcome"] != "duplicate"


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Leaves logging as it was before the test configured it."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


async def test_no_secret_and_nothing_of_a_body_is_in_logs_or_answers(
    database_url: str, rows: Rows, capsys: pytest.CaptureFixture[str], logging_restored: None
) -> None:
    logs.configure("debug", "json")
    canary = "canary-4242424242424242"
    refused = subscription("evt_3", "active", kind="created", object_id="sub_3", customer=canary)
    refused["data"]["object"]["customer"] = canary
    broken = deepcopy(refused) | {"id": "evt_2"}
    broken["data"]["object"]["status"] = [canary]
    await rows.connection.execute(f"ALTER TABLE subscriptions ADD CONSTRAINT no CHECK (customer <> '{canary}')")
    answers: list[httpx.Response] = []
    async with serving(database_url) as served:
        bodies = (refused, refused, broken, {**refused, "id": canary * 20}, f"[{canary}".encode())
        answers += [await served.post(body) for body in bodies]
        answers.append(await served.post(refused, **{"stripe-signature": canary}))
        answers.append(await served.post(refused, **{"stripe-signature": f"t=1,v1={canary}"}))
        answers.append(await served.post(refused, **{"content-type": canary}))
        answers.append(await served.post(refused, **{"content-encoding": canary}))
        answers.append(await served.post(refused, f"/webhooks/{canary}"))
    lines = [line for line in capsys.readouterr().out.splitlines() if json.loads(line).get("logger") != "httpx"]
    written = "\n".join(lines)
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400, 400, 401, 401, 415, 415, 404]
    assert [answer.json().get("reason") for answer in answers[:3]] == [
        "data_refused",
        "data_refused",
        "projection_failed",
    ]
    assert "batch_failed" in written
    assert "delivery_refused" in written
    for text in (written, *(answer.text for answer in answers)):
        assert canary not in text
        assert SECRET.decode() not in text


# --- everything else that could come


def fresh(path: str) -> dict[str, Any]:
    """A published event under an id of its own, as if it had happened in the last hour."""
    event: dict[str, Any] = json.loads(payload(path))
    now = utc_now() - timedelta(minutes=30)
    event["id"] = f"evt_{uuid4().hex}"
    is_thin = event["object"] == "v2.core.event"
    event["created"] = now.isoformat().replace("+00:00", "Z") if is_thin else int(now.timestamp())
    return event


async def test_every_published_stripe_event_is_taken_and_every_bare_object_is_not(served: Served, rows: Rows) -> None:
    paths = list(stripe_events())
    if not paths:
        pytest.skip("the published payloads are not here: there is no ../shared/data beside the checkout")
    told: dict[str, tuple[int, str]] = {}
    for path in paths:
        event = fresh(path)
        answer = await served.post(event)
        told[path] = answer.status_code, answer.json().get("outcome", answer.text)
        bare = event.get("data", {}).get("object")
        if isinstance(bare, dict) and "object" in bare:
            assert_problem(await served.post(bare), 400, "not_an_event")
    assert {path: answer for path, answer in told.items() if answer[0] != 200} == {}
    assert {path: answer for path, answer in told.items() if answer[1] == "duplicate"} == {}
    assert await rows.one("SELECT count(*) FROM processed_events") == len(paths)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
NEARLY_EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["evt_1", "", "e" * 300]) | JSON_VALUES,
        "object": st.sampled_from(["event", "v2.core.event", "charge"]) | JSON_VALUES,
        "type": st.sampled_from(["customer.subscription.updated", "charge.x"]) | JSON_VALUES,
        "created": st.integers(-5, 2**40) | st.just(HOUR_AGO) | JSON_VALUES,
        "data": st.just(EVENT["data"]) | st.fixed_dictionaries({"object": JSON_VALUES}) | JSON_VALUES,
        "livemode": st.booleans() | JSON_VALUES,
        "account": JSON_VALUES,
        "context": JSON_VALUES,
        "snapshot_event": JSON_VALUES,
    },
)
BODIES = st.binary(max_size=200) | st.one_of(JSON_VALUES, NEARLY_EVENTS).map(lambda value: json.dumps(value).encode())
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "content-encoding", "content-length", "x-request-id", "stripe-signature"]),
    st.sampled_from([b"application/json", b"identity", b"gzip", b"12", b"-1", b"t=1,v1=ab"]) | st.binary(max_size=40),
    max_size=2,
)
STATUSES = {200, 400, 401, 404, 405, 408, 413, 415, 503}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=BODIES,
    headers=HEADERS,
    signed=st.booleans(),
    method=st.sampled_from(["POST"] * 6 + ["GET", "PUT"]),
    path=st.sampled_from(["/webhooks/stripe"] * 6 + ["/webhooks/stripe/", "/webhooks/x"]),
)
async def test_whatever_comes_has_one_of_the_answers_and_without_a_signature_leaves_nothing(
    served: Served, rows: Rows, body: bytes, headers: Mapping[str, bytes], signed: bool, method: str, path: str
) -> None:
    before = await rows.counts()
    proof = headers_of(body) if signed else JSON
    every = as_bytes(proof) | {name.encode(): value for name, value in headers.items()}
    request = served.client.build_request(method, path, content=body)
    request.headers = httpx.Headers(every)
    answer = await served.client.send(request)
    assert answer.status_code in STATUSES, answer.text
    if not signed or answer.status_code != 200:
        assert await rows.counts() == before
    else:
        assert answer.json()["outcome"] in {"applied", "duplicate", "stale", "ignored", "parked", "expired"}


async def _true(value: bool) -> bool:
    return value
