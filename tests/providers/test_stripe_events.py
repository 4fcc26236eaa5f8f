import json
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pytest

from app.clock import monday_of
from app.errors import NotAnEvent, NotJson
from app.outcomes import Reason
from app.providers import PROVIDERS
from app.providers.base import FOREVER, Ignored, Provider
from tests.providers.stripe_requests import NOW, SOURCE, STRIPE, T, ignored, read, snapshot
from tests.shared_data import payload, stripe_events, timeline


def thin(**changes: Any) -> dict[str, Any]:
    event = {
        "id": "evt_65_1",
        "object": "v2.core.event",
        "type": "v1.customer.subscription.updated",
        "created": "2026-01-01T00:01:00.123Z",
        "livemode": True,
        "context": None,
        "related_object": {"id": "sub_1", "type": "subscription"},
        "snapshot_event": "evt_1",
    }
    return event | changes


def test_stripe_is_registered_and_tries_again() -> None:
    provider: Provider = PROVIDERS["stripe"]
    assert provider.name == "stripe"
    assert provider.retries
    assert provider.content_types == {"application/json"}
    assert (provider.default_max_body_bytes, provider.default_deadline_seconds) == (1_000_000, 3.0)
    assert provider.headers == {"content-type", "user-agent"}


def test_a_snapshot_event_is_named_by_what_it_says() -> None:
    delivery = read(snapshot())
    assert (delivery.provider, delivery.event_id, delivery.type) == ("stripe", "evt_1", "quantum.flux.updated")
    assert delivery.namespace == "stripe:self:test"
    assert delivery.occurred_at == datetime.fromtimestamp(T, UTC)
    assert delivery.week == date(2025, 12, 29)
    assert (delivery.object_id, delivery.api_version, delivery.twin_id) == ("qf_1", "2026-06-24.dahlia", None)


@pytest.mark.parametrize(
    ("account", "default", "live", "namespace"),
    [
        (None, None, True, "stripe:self:live"),
        (None, "acct_ours", False, "stripe:acct_ours:test"),
        ("acct_theirs", "acct_ours", True, "stripe:acct_theirs:live"),
    ],
)
def test_the_namespace_is_the_account_else_the_sources_own_and_the_mode(
    account: str | None, default: str | None, live: bool, namespace: str
) -> None:
    source = replace(SOURCE, namespace=default)
    assert read(snapshot(account=account, livemode=live), source).namespace == namespace
    context = account and f"org_1/{account}"
    assert read(thin(context=context, livemode=live), source).namespace == namespace


def test_an_event_that_does_not_say_its_mode_counts_as_a_test() -> None:
    event = snapshot(livemode=None)
    assert read(event).namespace == "stripe:self:test"
    assert ignored(event, replace(SOURCE, livemode="live")) == Reason.WRONG_MODE
    assert ignored(event, replace(SOURCE, livemode="test")) == Reason.NO_PROJECTION


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"id": None}, "`id`"),
        ({"id": ""}, "`id`"),
        ({"id": 7}, "`id`"),
        ({"id": "e" * 256}, "`id`"),
        ({"id": "evt_\x00"}, "`id`"),
        ({"id": "evt_\ud83d"}, "`id`"),
        ({"type": None}, "`type`"),
        ({"type": ""}, "`type`"),
        ({"type": ["a"]}, "`type`"),
        ({"created": None}, "`created`"),
        ({"created": True}, "`created`"),
        ({"created": -1}, "`created`"),
        ({"created": 253_402_300_800}, "`created`"),
        ({"created": 2**64}, "`created`"),
        ({"created": "1767225600"}, "`created`"),
        ({"created": 1767225600.5}, "`created`"),
        ({"livemode": "true"}, "`livemode`"),
        ({"account": 5}, "`account`"),
        ({"account": ""}, "`account`"),
        ({"data": None}, "`data.object`"),
        ({"data": []}, "`data.object`"),
        ({"data": {}}, "`data.object`"),
        ({"data": {"object": "sub_1"}}, "`data.object`"),
        ({"object": "subscription"}, "`object`"),
        ({"object": ["event"]}, "`object`"),
    ],
)
def test_what_lacks_a_part_of_an_event_is_refused_by_its_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NotAnEvent, match=named):
        read(snapshot(**changes))


@pytest.mark.parametrize("body", [b"[]", b"null", b'"evt_1"', b"1"])
def test_what_is_no_object_is_no_event(body: bytes) -> None:
    with pytest.raises(NotAnEvent):
        read(body)


def test_a_signed_body_that_is_not_json_is_refused() -> None:
    with pytest.raises(NotJson):
        read(b"{")


def test_the_longest_id_and_the_last_second_are_taken() -> None:
    delivery = read(snapshot(id="e" * 255, created=253_402_300_799))
    assert (len(delivery.event_id), delivery.occurred_at.year) == (255, 9999)
    assert read(snapshot(created=0)).week == date(1969, 12, 29)


@pytest.mark.parametrize("odd", [None, 7, "", "x" * 256, "a\x00", {"id": "a"}])
def test_an_object_id_that_cannot_be_a_key_is_none(odd: Any) -> None:
    assert read(snapshot(data={"object": {"id": odd}})).object_id is None
    assert read(thin(related_object={"id": odd})).object_id is None


def test_an_api_version_is_a_label_that_may_be_missing() -> None:
    assert read(snapshot(api_version=None)).api_version is None
    assert read(snapshot(api_version=5)).api_version is None
    assert read(snapshot(api_version="2026\x00")).api_version == "2026\ufffd"


def test_objects_of_a_test_clock_are_kept_for_ever() -> None:
    for clock in ("clock_1", {"id": "clock_1"}):
        assert read(snapshot(data={"object": {"id": "sub_1", "test_clock": clock}})).week == FOREVER
    assert read(snapshot(data={"object": {"id": "sub_1", "test_clock": None}})).week != FOREVER


def test_the_hash_ignores_what_legitimately_varies_between_deliveries() -> None:
    event = snapshot()
    turned = dict(reversed((event | {"pending_webhooks": 0}).items()))
    pretty = json.dumps(turned, indent=2).encode()
    assert read(pretty).payload_hash == read(event).payload_hash
    assert read(snapshot(data={"object": {"id": "qf_2"}})).payload_hash != read(event).payload_hash


def test_a_thin_event_is_named_like_its_twin() -> None:
    delivery = read(thin())
    assert (delivery.event_id, delivery.type) == ("evt_65_1", "v1.customer.subscription.updated")
    assert (delivery.namespace, delivery.twin_id) == ("stripe:self:live", "evt_1")
    assert delivery.occurred_at == datetime(2026, 1, 1, 0, 1, 0, 123_000, UTC)
    assert (delivery.week, delivery.object_id, delivery.api_version) == (date(2025, 12, 29), "sub_1", None)
    assert read(snapshot(livemode=True)).namespace == delivery.namespace


@pytest.mark.parametrize(
    ("context", "account"),
    [("acct_1", "acct_1"), ("org_1/acct_1", "acct_1"), ("ws_1", "ws_1"), ("org_1/ws_1", "org_1/ws_1")],
)
def test_the_context_names_the_account_of_a_thin_event(context: str, account: str) -> None:
    assert read(thin(context=context)).namespace == f"stripe:{account}:live"


@pytest.mark.parametrize(
    "created",
    [
        None,
        T,
        "",
        "2026-01-01",
        "20260101T000000Z",
        "2026-01-01T00:00:00",
        "2026-01-01 00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-01-01T00:00:60Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "1969-12-31T23:59:59Z",
        "٢٠٢٦-01-01T00:00:00Z",
    ],
)
def test_a_thin_event_without_an_rfc3339_time_is_no_event(created: Any) -> None:
    with pytest.raises(NotAnEvent, match="`created`"):
        read(thin(created=created))


def test_a_thin_events_time_may_have_an_offset_and_more_digits() -> None:
    assert read(thin(created="2026-01-01T01:00:00.123456789+01:00")).occurred_at.hour == 0


@pytest.mark.parametrize("changes", [{"id": 1}, {"type": ""}, {"context": 5}, {"livemode": "yes"}])
def test_a_thin_event_needs_the_same_parts(changes: dict[str, Any]) -> None:
    with pytest.raises(NotAnEvent):
        read(thin(**changes))


def test_a_thin_event_without_an_object_or_a_twin_is_an_event() -> None:
    delivery = read(thin(related_object=None, snapshot_event=None))
    assert (delivery.object_id, delivery.twin_id) == (None, None)


@pytest.mark.parametrize("path", ["1-v1.customer.subscription.updated", "2-ping", "3-event_generation_failure"])
def test_a_thin_event_waits_for_its_snapshot(path: str) -> None:
    assert ignored(timeline(f"H-thin/{path}.json")) == Reason.THIN_WAITS_FOR_SNAPSHOT


def test_a_thin_event_names_the_snapshot_of_the_same_change_and_shares_its_namespace() -> None:
    twin, ours = (
        read(timeline("A-same-second-tie/2-updated-active.json")),
        read(timeline("H-thin/1-v1.customer.subscription.updated.json")),
    )
    assert (ours.twin_id, ours.namespace, ours.object_id) == (twin.event_id, twin.namespace, twin.object_id)


def test_the_wrong_mode_is_ignored_whatever_the_event() -> None:
    live = timeline("I-odd/2-livemode-true.json")
    test = timeline("I-odd/1-connect-account.json")
    assert ignored(live, replace(SOURCE, livemode="test")) == Reason.WRONG_MODE
    assert ignored(test, replace(SOURCE, livemode="live")) == Reason.WRONG_MODE
    assert ignored(thin(), replace(SOURCE, livemode="test")) == Reason.WRONG_MODE
    assert not isinstance(STRIPE.changes(read(live, replace(SOURCE, livemode="live"))), Ignored)
    assert not isinstance(STRIPE.changes(read(test, replace(SOURCE, livemode="test"))), Ignored)


def test_a_type_that_nobody_knows_is_ignored() -> None:
    assert ignored(timeline("I-odd/3-unknown-type.json")) == Reason.NO_PROJECTION
    assert ignored(timeline("I-odd/5-customer-deleted.json")) == Reason.NO_PROJECTION


def test_an_object_without_an_id_is_read() -> None:
    assert read(timeline("I-odd/7-invoice.upcoming-no-id.json")).object_id is None


def test_a_subscription_without_an_id_is_ignored() -> None:
    event = snapshot("customer.subscription.updated", data={"object": {"status": "active"}})
    assert ignored(event) == Reason.NO_OBJECT_ID


def test_a_connect_event_lives_in_the_namespace_of_its_account() -> None:
    assert read(timeline("I-odd/1-connect-account.json")).namespace == "stripe:acct_derived_connected:test"


def test_a_stored_body_is_the_same_delivery_again() -> None:
    delivery = read(timeline("B-lifecycle/2-updated-active.json"))
    recalled = STRIPE.recall(SOURCE, delivery.body, delivery.received_at)
    assert recalled == replace(delivery, headers={}, secret_label="")
    assert STRIPE.changes(recalled) == STRIPE.changes(delivery)


def test_a_stored_body_that_is_no_event_is_refused() -> None:
    with pytest.raises(NotAnEvent):
        STRIPE.recall(SOURCE, b"{}", NOW)


@pytest.mark.parametrize("path", list(stripe_events()) or ["stripe"])
def test_every_published_event_is_read_and_has_a_meaning(path: str) -> None:
    body = payload(path)
    event = json.loads(body)
    delivery = read(body)
    meaning = STRIPE.changes(delivery)
    assert delivery.event_id == event["id"]
    assert delivery.week == monday_of(delivery.occurred_at)
    if event["object"] == "v2.core.event":
        assert meaning == Ignored(Reason.THIN_WAITS_FOR_SNAPSHOT)
    elif event["type"].startswith("customer.subscription."):
        assert not isinstance(meaning, Ignored)
        (change,) = meaning
        assert (change.external_id, change.namespace) == (event["data"]["object"]["id"], delivery.namespace)
        assert change.state.status == event["data"]["object"]["status"]
        assert change.state.current_period_end is not None
        assert change.state.plan is not None
    else:
        assert meaning == Ignored(Reason.NO_PROJECTION)
