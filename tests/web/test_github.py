"""GitHub's deliveries through the service: recorded byte for byte, each once for each hook."""

from collections.abc import AsyncIterator
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


async def test_every_published_payload_is_answered_200(github: Served, rows: Rows) -> None:
    payloads = sorted((DATA / "github" / "octokit-webhooks").rglob("*.payload.json"))
    if not payloads:
        pytest.skip("GitHub's payload examples are not here: there is no ../shared/data beside the checkout")
    for path in payloads:
        answer = await post(github, path.read_bytes(), path.parent.name, str(uuid1()))
        assert answer.status_code == 200, path
        assert answer.json()["reason"] == "no_projection", path
    assert await rows.one("SELECT count(*) FROM inbox") == len(payloads)
