"""GitHub's deliveries through the service: recorded byte for byte, each once for each hook."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid1, uuid4

import httpx
import orjson
import pytest

from app.providers.github.events import FORM
from app.providers.github.signature import sign
from tests.service import Rows, Served, serving
from tests.shared_data import DATA

SECRET = "a hook's: secret"


@pytest.fixture
async def github(database_url: str) -> AsyncIterator[Served]:
    async with serving(database_url, github_webhook_secrets=f"before,{SECRET}") as found:
        yield found


async def post(served: Served, event: Any, name: str, guid: str, **headers: str) -> httpx.Response:
    body = event if isinstance(event, bytes) else orjson.dumps(event)
    sent = {
        "content-type": "application/json",
        "x-github-event": name,
        "x-github-delivery": guid,
        "x-github-hook-id": "11",
        "x-hub-signature-256": sign(SECRET.encode(), body),
    }
    return await served.client.post("/webhooks/github", content=body, headers=sent | headers)


async def test_two_hooks_with_one_guid_are_two_events_and_each_redelivery_a_duplicate(
    github: Served, rows: Rows
) -> None:
    guid = str(uuid1())
    for _ in range(2):
        for hook in ("11", "22"):
            answer = await post(github, {"issue": {"id": 1}, "n": hook}, "issues", guid, **{"x-github-hook-id": hook})
            assert answer.status_code == 200
    found = await rows.all("SELECT namespace, duplicates, outcome FROM processed_events ORDER BY namespace")
    assert [tuple(row.values()) for row in found] == [
        ("github:github:11", 1, "ignored"),
        ("github:github:22", 1, "ignored"),
    ]


async def test_json_and_form_are_both_taken_and_stored_as_they_came(github: Served, rows: Rows) -> None:
    event = orjson.dumps({"action": "opened", "issue": {"id": 1, "title": "a+b & ü 🚀"}})
    form = b"payload=" + quote_plus(event).encode()
    plain = await post(github, event, "issues", str(uuid1()))
    encoded = await post(github, form, "issues", str(uuid1()), **{"content-type": FORM})
    assert (plain.json()["outcome"], encoded.json()["outcome"]) == ("ignored", "ignored")
    assert [row["body"] for row in await rows.all("SELECT body FROM inbox ORDER BY received_at")] == [event, form]


@pytest.mark.parametrize("text", [rb"\u0000", rb"\ud83d", "🚀".encode()])
async def test_text_that_jsonb_refuses_is_kept_byte_for_byte(github: Served, rows: Rows, text: bytes) -> None:
    body = b'{"action": "' + text + b'", "issue": {"id": 1}, "comment": {"id": 2, "body": "' + text + b'"}}'
    answer = await post(github, body, "issue_comment", str(uuid1()))
    assert answer.status_code == 200
    assert await rows.one("SELECT body FROM inbox") == body


async def test_a_guid_without_a_time_is_a_key_for_ever(github: Served, rows: Rows) -> None:
    guid = str(uuid4())
    outcomes = [(await post(github, {"ref": "x"}, "push", guid)).json()["outcome"] for _ in range(2)]
    assert outcomes == ["ignored", "duplicate"]
    assert await rows.one("SELECT tableoid::regclass::text FROM processed_events") == "processed_events_forever"


async def test_an_unsigned_delivery_leaves_nothing(github: Served, rows: Rows) -> None:
    answer = await post(github, {"ref": "x"}, "push", str(uuid1()), **{"x-hub-signature-256": "sha256=" + "0" * 64})
    assert (answer.status_code, answer.json()["code"]) == (401, "signature_mismatch")
    assert await rows.one("SELECT count(*) FROM processed_events") == 0


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b'{"zen": "\xff", "hook_id": 1}', "application/json", "not_json"),
        (b"payload=%FF", FORM, "not_json"),
        (b"other=1", FORM, "not_an_event"),
    ],
)
async def test_signed_bytes_that_are_no_event_are_refused_once_and_for_all(
    github: Served, rows: Rows, body: bytes, content_type: str, code: str
) -> None:
    answer = await post(github, body, "ping", str(uuid1()), **{"content-type": content_type})
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    assert await rows.one("SELECT count(*) FROM processed_events") == 0


@pytest.mark.parametrize(
    ("guid", "outcome"),
    [
        ("72d3162e-cc78-11e3-81ab-4c9367dc0958", "expired"),
        ("ffffffff-ffff-1fff-8000-000000000000", "parked"),
    ],
)
async def test_a_guid_of_another_age_is_told_and_makes_no_partition(
    github: Served, rows: Rows, guid: str, outcome: str
) -> None:
    count = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'processed_events'::regclass"
    before = await rows.one(count)
    answer = await post(github, {"zen": "x", "hook_id": 11}, "ping", guid)
    assert (answer.status_code, answer.json()["outcome"]) == (200, outcome)
    assert await rows.one(count) == before


def found_in(folder: str) -> list[Path]:
    paths = sorted((DATA / "github" / folder).rglob("*.json"))
    if not paths:
        pytest.skip(f"GitHub's {folder} are not here: there is no ../shared/data beside the checkout")
    return paths


@pytest.mark.parametrize("folder", ["octokit-webhooks", "octokit-webhooks.js"])
async def test_every_published_payload_is_answered_200(github: Served, rows: Rows, folder: str) -> None:
    paths = found_in(folder)
    for path in paths:
        body = path.read_bytes()
        name = path.parent.name if folder == "octokit-webhooks" else path.name.partition("-")[0]
        answer = await post(github, body, name, str(uuid1()))
        assert (answer.status_code, answer.json().get("reason")) == (200, "no_projection"), path
        assert await rows.one("SELECT body FROM inbox ORDER BY received_at DESC LIMIT 1") == body, path
    assert await rows.one("SELECT count(*) FROM inbox") == len(paths)


async def test_recorded_deliveries_verify_with_their_own_headers_and_are_named_by_them(
    database_url: str, rows: Rows
) -> None:
    recorded = {path.stem: orjson.loads(path.read_bytes()) for path in found_in("recorded-deliveries-redacted")}
    (secret,) = {delivery["secret"] for delivery in recorded.values()}
    async with serving(database_url, github_webhook_secrets=secret) as served:
        for delivery in recorded.values():
            headers, body = delivery["headers"], delivery["body"].encode()
            answer = await served.client.post("/webhooks/github", content=body, headers=headers)
            assert (answer.status_code, answer.json()["event_id"]) == (200, headers["x-github-delivery"])
            stored = "SELECT body FROM inbox WHERE namespace = $1 AND event_id = $2"
            namespace = f"github:github:{headers['x-github-hook-id']}"
            assert await rows.one(stored, namespace, headers["x-github-delivery"]) == body
    assert sorted(row["type"] for row in await rows.all("SELECT type FROM inbox")) == sorted(recorded)
