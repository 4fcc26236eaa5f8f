"""GitHub's deliveries: what the signature covers, and the names that nobody signed."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID, uuid1, uuid4

import orjson
import pytest

from app.clock import monday_of
from app.errors import NotAnEvent, NotJson, PayloadError, SignatureMismatch
from app.outcomes import Reason
from app.providers.base import FOREVER, Delivery, Ignored, Request, Secret, Source
from app.providers.github import GitHubProvider
from app.providers.github.events import FORM
from app.providers.github.signature import sign

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
GUID = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
"""The example of GitHub's documentation, made on 25 April 2014."""
SECRET = b"It's a Secret to Everybody"
SOURCE = Source("github", "github", (Secret("old", b"before"), Secret("new", SECRET)), namespace="github")
GITHUB = GitHubProvider()


def read(
    event: Any,
    name: str = "issues",
    *,
    guid: str = GUID,
    form: bool = False,
    headers: Mapping[str, str] | None = None,
) -> Delivery:
    body = event if isinstance(event, bytes) else orjson.dumps(event)
    content_type = "application/json"
    if form:
        body, content_type = b"payload=" + quote_plus(body).encode(), f"{FORM}; charset=utf-8"
    sent = {
        "content-type": content_type,
        "x-hub-signature-256": sign(SECRET, body),
        "x-github-delivery": guid,
        "x-github-event": name,
        "authorization": "never kept",
    }
    return GITHUB.read(SOURCE, Request(sent | dict(headers or {}), body), NOW)


def test_a_delivery_is_named_by_its_headers_and_kept_without_the_others() -> None:
    found = read({"action": "opened", "issue": {"id": 52_530_382_611}}, headers={"x-github-hook-id": "11"})
    assert (found.namespace, found.event_id, found.type) == ("github:github:11", GUID, "issues.opened")
    assert (found.object_id, found.secret_label, found.api_version) == ("issue:52530382611", "new", None)
    assert set(found.headers) == {"content-type", "x-github-delivery", "x-github-event", "x-github-hook-id"}
    assert found.occurred_at.date().isoformat() == "2014-04-25"
    assert found.week == monday_of(found.occurred_at)


def test_the_signature_covers_the_form_and_the_event_is_the_same() -> None:
    event = {"action": "opened", "issue": {"id": 1, "title": "a+b & c = % é 🚀"}}
    assert read(event, form=True).event == read(event).event == event
    json_signed = {"x-hub-signature-256": sign(SECRET, orjson.dumps(event))}
    with pytest.raises(SignatureMismatch):
        read(event, form=True, headers=json_signed)


@pytest.mark.parametrize("body", [b"", b"payload%", b"other=1", b"payload=1&payload=2", b"a=1&" * 20 + b"payload=1"])
def test_a_form_without_one_payload_is_no_event(body: bytes) -> None:
    with pytest.raises(NotAnEvent):
        read(body, headers={"content-type": FORM})


@pytest.mark.parametrize(
    ("body", "error"),
    [(b"[]", NotAnEvent), (b'"x"', NotAnEvent), (b"{", NotJson), (b'{"a": "\xff"}', NotJson), (b"payload=x", NotJson)],
)
def test_what_is_signed_but_no_event_is_refused(body: bytes, error: type[PayloadError]) -> None:
    with pytest.raises(error):
        read(body)


@pytest.mark.parametrize("guid", ["", "x", GUID + "0", GUID.replace("-", ""), f" {GUID}"])
def test_a_delivery_without_a_guid_is_no_event(guid: str) -> None:
    with pytest.raises(NotAnEvent, match="GUID"):
        read({"issue": {}}, guid=guid)


@pytest.mark.parametrize("name", ["", "Issues", "a b", "x" * 101, "é"])
def test_a_delivery_without_an_event_name_is_no_event(name: str) -> None:
    with pytest.raises(NotAnEvent, match="name"):
        read({"issue": {}}, name)


def test_a_guid_without_a_time_is_kept_for_ever_and_happened_now() -> None:
    found = read({"issue": {}}, guid=str(uuid4()).upper())
    assert (found.week, found.occurred_at) == (FOREVER, NOW)
    assert found.event_id == found.event_id.lower()
    assert read({"issue": {}}, guid=str(uuid1())).week != FOREVER
    latest = UUID(fields=(0xFFFFFFFF, 0xFFFF, 0x1FFF, 0x80, 0, 0))
    assert read({"issue": {}}, guid=str(latest)).occurred_at.year == 5236


def test_two_hooks_of_one_guid_are_two_keys_and_an_odd_hook_is_none() -> None:
    hooks = ["11", "22", "", "not a number"]
    namespaces = [read({"issue": {}}, headers={"x-github-hook-id": hook}).namespace for hook in hooks]
    assert namespaces == ["github:github:11", "github:github:22", "github:github:none", "github:github:none"]


def test_a_source_without_a_namespace_has_its_name_for_one() -> None:
    body = b'{"issue": {}}'
    headers = {"x-hub-signature-256": sign(SECRET, body), "x-github-delivery": GUID, "x-github-event": "issues"}
    found = GITHUB.read(replace(SOURCE, name="acme", namespace=None), Request(headers, body), NOW)
    assert found.namespace == "github:acme:none"


@pytest.mark.parametrize(
    ("name", "event", "object_id"),
    [
        ("issue_comment", {"issue": {"id": 7}}, "issue:7"),
        ("pull_request", {"pull_request": {"id": 8}}, "pull_request:8"),
        ("marketplace_purchase", {"marketplace_purchase": {"account": {"id": 9}}}, "account:9"),
        ("marketplace_purchase", {"marketplace_purchase": None}, None),
        ("sponsorship", {"sponsorship": {"node_id": "S_\x001"}}, "sponsorship:S_�1"),
        ("sponsorship", {"sponsorship": {}}, None),
        ("push", {"ref": "refs/heads/main"}, None),
        ("star", {"star": {"id": True}}, None),
        ("issues", {"issue": {"id": 2**63 - 1}}, f"issue:{2**63 - 1}"),
        ("issues", b'{"note": "\\ud83d", "issue": {"id": 1' + b"0" * 4000 + b"}}", None),
    ],
)
def test_what_an_event_is_about(name: str, event: Any, object_id: str | None) -> None:
    assert read(event, name).object_id == object_id


def test_an_action_is_part_of_the_type_where_it_is_a_text() -> None:
    assert read({"ref": "x"}, "push").type == "push"
    assert read({"action": 5, "issue": {}}).type == "issues"
    assert read({"action": "a" * 300, "issue": {}}).type == f"issues.{'a' * 100}"


@pytest.mark.parametrize(
    ("name", "event", "reason"),
    [
        ("issues", {"issue": {}}, Reason.NO_PROJECTION),
        ("ping", {"zen": "x", "hook_id": 1}, Reason.NO_PROJECTION),
        ("ping", {"zen": "x"}, Reason.NAME_MISMATCH),
        ("push", {"ref": "x", "before": "0", "after": "1"}, Reason.NO_PROJECTION),
        ("push", {"ref": "x", "ref_type": "branch"}, Reason.NAME_MISMATCH),
        ("pull_request", {"pull_request": {}, "number": 1}, Reason.NO_PROJECTION),
        ("pull_request", {"pull_request": {}, "review": {}}, Reason.NAME_MISMATCH),
        ("issues", {"pull_request": {}}, Reason.NAME_MISMATCH),
        ("sponsorship", {"action": "created", "issue": {}}, Reason.NAME_MISMATCH),
        ("marketplace_purchase", {"sponsorship": {}}, Reason.NAME_MISMATCH),
        ("something_new", {}, Reason.NO_PROJECTION),
    ],
)
def test_every_event_is_recorded_and_a_name_that_the_body_contradicts_is_told(
    name: str, event: dict[str, Any], reason: Reason
) -> None:
    assert GITHUB.changes(read(event, name)) == Ignored(reason)


def test_a_stored_body_alone_names_no_delivery() -> None:
    with pytest.raises(NotAnEvent):
        GITHUB.recall(SOURCE, b"{}", NOW)
