"""Standard Webhooks: the id is signed, the secret is decoded, the tolerance has two sides."""

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.clock import utc_now
from app.errors import (
    ConfigurationError,
    NotAnEvent,
    SignatureError,
    SignatureMalformed,
    SignatureMismatch,
    SignatureMissing,
    TimestampOutOfTolerance,
)
from app.outcomes import Reason
from app.providers.base import FOREVER, Delivery, Ignored, Request, Secret, Source
from app.providers.sources import configured_sources
from app.providers.standardwebhooks import StandardWebhooksProvider, sign
from tests.service import Rows, serving

PROVIDER = StandardWebhooksProvider()
CONFIGURED = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
KEY = PROVIDER.key_of(CONFIGURED)
SOURCE = Source("svix", "standardwebhooks", (Secret("old", b"o" * 24), Secret("new", KEY)), namespace="svix")
T = 1_614_265_330
NOW = datetime.fromtimestamp(T, UTC)
MESSAGE = "msg_p5jXN8AQM9LWM0D4loKWxJek"


def read(event: Any, *, now: datetime = NOW, headers: Mapping[str, str | None] | None = None) -> Delivery:
    body = event if isinstance(event, bytes) else orjson.dumps(event)
    sent: dict[str, str | None] = {
        "webhook-id": MESSAGE,
        "webhook-timestamp": str(T),
        "webhook-signature": sign(KEY, MESSAGE, T, body),
        **(headers or {}),
    }
    return PROVIDER.read(SOURCE, Request({name: value for name, value in sent.items() if value is not None}, body), now)


def test_the_published_vector_verifies() -> None:
    published = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(KEY, MESSAGE, T, b'{"test": 2432232314}') == published
    with pytest.raises(NotAnEvent, match="type"):
        read(b'{"test": 2432232314}', headers={"webhook-signature": published})


def test_a_message_is_named_by_its_signed_id_and_happened_when_it_says() -> None:
    found = read({"type": "user.created", "timestamp": "2021-02-25T14:00:00+01:00", "data": {"id": "user_1"}})
    assert (found.namespace, found.event_id, found.type) == ("standardwebhooks:svix", MESSAGE, "user.created")
    assert (found.object_id, found.secret_label) == ("user_1", "new")
    assert found.occurred_at == datetime(2021, 2, 25, 13, tzinfo=UTC)
    assert found.week.isoformat() == "2021-02-22"
    assert PROVIDER.changes(found) == Ignored(Reason.NO_PROJECTION)


@pytest.mark.parametrize("timestamp", [None, 5, "yesterday", "2021-02-25T14:00:00", "0001-01-01T00:00:00+14:00"])
def test_a_message_without_a_time_is_a_key_for_ever(timestamp: Any) -> None:
    found = read({"type": "x", "timestamp": timestamp, "data": {"id": 5}})
    assert (found.week, found.occurred_at, found.object_id) == (FOREVER, NOW, None)


def test_other_versions_and_broken_items_beside_a_good_signature_are_passed_over() -> None:
    good = sign(KEY, MESSAGE, T, b'{"type": "x"}')
    header = f"v1a,AAAA v1 v1, v1,!!! v1,{'é'} nonsense v2,x {good}"
    assert read(b'{"type": "x"}', headers={"webhook-signature": header}).secret_label == "new"
    old = sign(b"o" * 24, MESSAGE, T, b'{"type": "x"}')
    assert read(b'{"type": "x"}', headers={"webhook-signature": old}).secret_label == "old"


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"webhook-id": None}, SignatureMissing),
        ({"webhook-timestamp": None}, SignatureMissing),
        ({"webhook-signature": None}, SignatureMissing),
        ({"webhook-id": ""}, SignatureMalformed),
        ({"webhook-id": "a.b"}, SignatureMalformed),
        ({"webhook-id": "x" * 256}, SignatureMalformed),
        ({"webhook-id": "é"}, SignatureMalformed),
        ({"webhook-id": "a\x00"}, SignatureMalformed),
        ({"webhook-id": "a\n"}, SignatureMalformed),
        ({"webhook-timestamp": "1e9"}, SignatureMalformed),
        ({"webhook-timestamp": "-5"}, SignatureMalformed),
        ({"webhook-timestamp": f"0{T}"}, SignatureMalformed),
        ({"webhook-timestamp": "9" * 20}, SignatureMalformed),
        ({"webhook-signature": ""}, SignatureMalformed),
        ({"webhook-signature": "v1a,AAAA"}, SignatureMalformed),
        ({"webhook-signature": "v1,AAAA " * 33}, SignatureMalformed),
        ({"webhook-signature": "v1,AAAA"}, SignatureMismatch),
        ({"webhook-id": "msg_other"}, SignatureMismatch),
        ({"webhook-timestamp": str(T + 1)}, SignatureMismatch),
    ],
)
def test_what_is_not_proved_is_refused(headers: Mapping[str, str | None], error: type[SignatureError]) -> None:
    with pytest.raises(error):
        read({"type": "x"}, headers=headers)


@pytest.mark.parametrize(("seconds", "taken"), [(-301, False), (-300, True), (0, True), (300, True), (301, False)])
def test_the_signed_time_is_tolerated_in_both_directions(seconds: int, taken: bool) -> None:
    now = NOW + timedelta(seconds=seconds)
    if taken:
        assert read({"type": "x"}, now=now).event_id == MESSAGE
    else:
        with pytest.raises(TimestampOutOfTolerance):
            read({"type": "x"}, now=now)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60), st.text(max_size=30), st.text(max_size=60))
def test_no_headers_raise_anything_else(message_id: str, timestamp: str, signature: str) -> None:
    with pytest.raises(SignatureError):
        read(
            {"type": "x"},
            headers={"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature},
        )


@pytest.mark.parametrize("event", [[], {}, {"type": 5}, {"type": ""}, {"type": "x" * 256}, {"type": "\x00"}])
def test_what_is_signed_but_no_event_is_refused(event: Any) -> None:
    with pytest.raises(NotAnEvent):
        read(event)


def test_a_source_without_a_usable_secret_proves_nothing() -> None:
    body = b'{"type": "x"}'
    headers = {"webhook-id": "m", "webhook-timestamp": str(T), "webhook-signature": sign(b"", "m", T, body)}
    with pytest.raises(ConfigurationError):
        PROVIDER.read(replace(SOURCE, secrets=(Secret("empty", b""),)), Request(headers, body), NOW)


def test_a_source_without_a_namespace_has_its_name_for_one() -> None:
    body = b'{"type": "x"}'
    headers = {"webhook-id": "m", "webhook-timestamp": str(T), "webhook-signature": sign(KEY, "m", T, body)}
    found = PROVIDER.read(replace(SOURCE, namespace=None), Request(headers, body), NOW)
    assert found.namespace == "standardwebhooks:svix"


def test_a_stored_body_alone_names_no_message() -> None:
    with pytest.raises(NotAnEvent):
        PROVIDER.recall(SOURCE, b"{}", NOW)


@pytest.mark.parametrize("secret", ["whsec_!", "whsec_AAAA", "x" * 120])
def test_a_secret_of_another_form_stops_the_start_and_is_not_shown(tmp_path: Path, secret: str) -> None:
    path = tmp_path / "sources.toml"
    path.write_text(f'[[sources]]\nname = "svix"\nprovider = "standardwebhooks"\nsecrets = ["{secret}"]\n')
    with pytest.raises(ConfigurationError, match="source svix: secrets: the secret secret-1") as told:
        configured_sources({}, path, {})
    assert secret not in str(told.value)


async def test_a_message_is_received_recorded_and_sent_on(database_url: str, rows: Rows, tmp_path: Path) -> None:
    path = tmp_path / "sources.toml"
    secret = base64.b64encode(KEY).decode()
    path.write_text(
        f'[[sources]]\nname = "svix"\nprovider = "standardwebhooks"\nsecrets = ["{secret}"]\npublish_events = true\n'
    )
    body = orjson.dumps({"type": "user.created", "timestamp": utc_now(), "data": {"id": "user_1"}})
    now = int(utc_now().timestamp())
    headers = {
        "content-type": "application/json",
        "webhook-id": "msg_1",
        "webhook-timestamp": str(now),
        "webhook-signature": sign(KEY, "msg_1", now, body),
    }
    async with serving(database_url, sources_file=path, stripe_webhook_secrets="") as served:
        answers = [await served.client.post("/webhooks/svix", content=body, headers=headers) for _ in range(2)]
    assert [answer.json()["outcome"] for answer in answers] == ["ignored", "duplicate"]
    assert await rows.one("SELECT subject FROM outbox") == "event/standardwebhooks:svix/msg_1"
