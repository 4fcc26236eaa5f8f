from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest

from app.billing.changes import NOTHING, SubscriptionChange, SubscriptionItem, SubscriptionState, state_hash
from app.errors import ProjectionError
from app.providers.base import Ignored
from app.providers.stripe.subscriptions import state_of
from tests.providers.stripe_requests import STRIPE, T, read, snapshot
from tests.shared_data import stripe_timeline, timeline

AT = datetime.fromtimestamp(T, UTC)
PRICE = {
    "id": "price_1",
    "product": "prod_1",
    "unit_amount": 2000,
    "currency": "usd",
    "recurring": {"interval": "month", "interval_count": 1},
}
PLAN = {
    "id": "price_1",
    "product": "prod_1",
    "amount": 2000,
    "currency": "usd",
    "interval": "month",
    "interval_count": 1,
}
ITEM = {"id": "si_1", "price": PRICE, "quantity": 3, "current_period_end": T}


def subscription(**changes: Any) -> dict[str, Any]:
    whole = {
        "id": "sub_1",
        "object": "subscription",
        "status": "active",
        "customer": "cus_1",
        "items": {"data": [ITEM]},
    }
    return whole | changes


def change_of(event: dict[str, Any]) -> SubscriptionChange:
    meaning = STRIPE.changes(read(event))
    assert not isinstance(meaning, Ignored)
    (change,) = meaning
    return change


def event_of(kind: str, post: dict[str, Any], previous: Any = None) -> dict[str, Any]:
    return snapshot(f"customer.subscription.{kind}", data={"object": post, "previous_attributes": previous})


def test_a_change_says_what_it_is_about() -> None:
    change = change_of(event_of("updated", subscription(created=T - 60)))
    assert (change.namespace, change.external_id, change.event_id) == ("stripe:self:test", "sub_1", "evt_1")
    assert (change.occurred_at, change.created_at) == (AT, datetime.fromtimestamp(T - 60, UTC))
    assert change.post_hash == state_hash(change.state)


def test_every_column_is_read_from_the_newest_shape() -> None:
    times = {"trial_end": T + 1, "cancel_at": T + 2, "canceled_at": T + 3, "ended_at": T + 4}
    state = state_of(subscription(**times, cancel_at_period_end=True, pause_collection={"behavior": "void"}))
    item = SubscriptionItem("si_1", "price_1", "prod_1", 3, 2000, "usd", "month", 1, AT)
    assert state == SubscriptionState(
        status="active",
        customer="cus_1",
        plan="price_1",
        product="prod_1",
        quantity=3,
        unit_amount=2000,
        currency="usd",
        interval="month",
        interval_count=1,
        current_period_end=AT,
        cancel_at_period_end=True,
        pause_behavior="void",
        items=(item,),
        **{key: datetime.fromtimestamp(seconds, UTC) for key, seconds in times.items()},
    )


@pytest.mark.parametrize(
    "older",
    [
        {"items": {"data": [{**ITEM, "current_period_end": None}]}, "current_period_end": T},
        {"items": {"data": [{"id": "si_1", "plan": PLAN, "quantity": 3}]}, "current_period_end": T},
        {"items": {"data": [{"id": "si_1"}]}, "plan": PLAN, "quantity": 3, "current_period_end": T},
        {"items": [ITEM]},
        {"customer": {"id": "cus_1", "object": "customer"}},
        {"items": {"data": [{**ITEM, "price": {**PRICE, "product": {"id": "prod_1"}}, "plan": {"id": "other"}}]}},
    ],
    ids=["period-above", "plan-in-item", "plan-above", "bare-list", "customer-expanded", "product-expanded"],
)
def test_every_older_or_expanded_shape_gives_the_same_state(older: dict[str, Any]) -> None:
    assert state_of(subscription(**older)) == state_of(subscription())


def test_a_subscription_without_items_has_its_own_plan_as_its_only_line() -> None:
    state = state_of(subscription(items=None, plan=PLAN, quantity=3, current_period_end=T))
    assert (state.plan, state.quantity, state.unit_amount, state.current_period_end) == ("price_1", 3, 2000, AT)


def test_a_plan_above_is_not_taken_for_one_of_several_lines() -> None:
    lines = [{"id": "si_1", "quantity": 1}, {"id": "si_2", "quantity": 2}]
    state = state_of(subscription(items={"data": lines}, plan=PLAN, quantity=9, current_period_end=T))
    assert [(item.plan, item.quantity, item.current_period_end) for item in state.items] == [
        (None, 1, AT),
        (None, 2, AT),
    ]


def test_nothing_but_the_status_has_to_be_there() -> None:
    assert state_of({"status": "active"}) == SubscriptionState("active")
    assert state_of({"status": "active", "customer": {}, "items": {}, "pause_collection": {}}) == SubscriptionState(
        "active"
    )


def test_a_price_or_plan_given_by_its_id_is_kept() -> None:
    assert state_of(subscription(items={"data": [{"price": "price_9"}]})).plan == "price_9"
    assert state_of(subscription(items={"data": [{"plan": "gold"}]})).plan == "gold"


def test_a_status_that_nobody_knows_is_data() -> None:
    assert state_of(subscription(status="hibernating")).status == "hibernating"


@pytest.mark.parametrize(
    "broken",
    [
        {"status": None},
        {"status": ""},
        {"status": 1},
        {"status": "x" * 256},
        {"customer": 5},
        {"customer": {"id": 5}},
        {"items": "si_1"},
        {"items": {"data": {}}},
        {"items": {"data": ["si_1"]}},
        {"items": {"data": [{**ITEM, "quantity": "3"}]}},
        {"items": {"data": [{**ITEM, "quantity": 3.0}]}},
        {"items": {"data": [{**ITEM, "quantity": True}]}},
        {"items": {"data": [{**ITEM, "quantity": 2**63}]}},
        {"items": {"data": [{**ITEM, "price": 5}]}},
        {"items": {"data": [{**ITEM, "price": {"unit_amount": 2**63}}]}},
        {"items": {"data": [{**ITEM, "price": {"unit_amount": 10**30}}]}},
        {"items": {"data": [{**ITEM, "price": {"recurring": "month"}}]}},
        {"items": {"data": [{**ITEM, "current_period_end": "soon"}]}},
        {"trial_end": -1},
        {"cancel_at": 253_402_300_800},
        {"ended_at": True},
        {"cancel_at_period_end": "no"},
        {"cancel_at_period_end": 0},
        {"pause_collection": "void"},
        {"created": "yesterday"},
        {"object": "invoice"},
    ],
)
def test_a_value_that_its_column_cannot_hold_parks_the_event(broken: dict[str, Any]) -> None:
    with pytest.raises(ProjectionError):
        change_of(event_of("updated", subscription(**broken)))


def test_text_that_postgresql_cannot_hold_is_substituted_visibly() -> None:
    state = state_of(subscription(status="act\x00ive", customer="cus_\ud83d"))
    assert (state.status, state.customer) == ("act\ufffdive", "cus_\ufffd")


def test_the_largest_amount_of_a_bigint_is_kept() -> None:
    assert state_of(subscription(items={"data": [{"price": {"unit_amount": 2**63 - 1}}]})).unit_amount == 2**63 - 1


def test_the_time_of_creation_falls_back_to_the_start() -> None:
    assert change_of(event_of("updated", subscription(start_date=T))).created_at == AT
    assert change_of(event_of("updated", subscription())).created_at is None


def test_a_creation_comes_from_nothing() -> None:
    assert change_of(event_of("created", subscription(), {"status": "incomplete"})).pre_hash == NOTHING


@pytest.mark.parametrize("kind", ["updated", "paused", "resumed", "pending_update_applied"])
def test_a_diff_leads_back_to_the_state_before(kind: str) -> None:
    change = change_of(event_of(kind, subscription(), {"status": "past_due"}))
    assert change.pre_hash == state_hash(state_of(subscription(status="past_due")))


@pytest.mark.parametrize("previous", [None, {}, [], "status"])
def test_without_a_diff_there_is_no_edge(previous: Any) -> None:
    assert change_of(event_of("updated", subscription(), previous)).pre_hash is None


@pytest.mark.parametrize("previous", [{"status": None}, {"status": 5}, {"items": {"data": ["si_1"]}}])
def test_a_diff_that_leads_to_no_state_costs_only_its_edge(previous: dict[str, Any]) -> None:
    change = change_of(event_of("updated", subscription(), previous))
    assert change.pre_hash is None
    assert change.state == state_of(subscription())


def test_a_diff_of_fields_that_we_do_not_keep_leads_back_to_the_same_state() -> None:
    change = change_of(event_of("updated", subscription(metadata={"k": "v"}), {"metadata": {"k": None}}))
    assert change.pre_hash == change.post_hash


def test_a_deletion_is_a_state_and_no_edge() -> None:
    change = change_of(event_of("deleted", subscription(ended_at=T), {"status": "past_due"}))
    assert (change.state.status, change.state.ended_at, change.pre_hash) == ("canceled", AT, None)
    assert change.post_hash == state_hash(change.state)


def test_a_deletion_keeps_a_terminal_status() -> None:
    assert (
        change_of(event_of("deleted", subscription(status="incomplete_expired"))).state.status == "incomplete_expired"
    )


def test_reading_an_event_changes_nothing_in_it() -> None:
    delivery = read(event_of("updated", subscription(), {"items": {"data": [{"id": "si_1", "quantity": 1}]}}))
    before = deepcopy(delivery.event)
    STRIPE.changes(delivery)
    assert delivery.event == before


def test_three_api_versions_of_one_update_give_the_same_state() -> None:
    paths = [
        path for path in stripe_timeline("G-api-version-drift") if path.endswith("customer.subscription.updated.json")
    ]
    changes = [change_of(timeline(path)) for path in paths or ["G-api-version-drift"]]
    assert len(changes) == 3
    assert len({(change.state, change.pre_hash, change.post_hash) for change in changes}) == 1
    assert changes[0].state.current_period_end == datetime(2026, 3, 4, tzinfo=UTC)


def test_the_edges_of_a_life_chain_up() -> None:
    paths = stripe_timeline("B-lifecycle")
    changes = [change_of(timeline(path)) for path in paths or ["B-lifecycle"]]
    assert [change.state.status for change in changes] == [
        "incomplete",
        "active",
        "past_due",
        "active",
        "active",
        "canceled",
    ]
    assert changes[0].pre_hash == NOTHING
    assert [change.pre_hash for change in changes[1:5]] == [change.post_hash for change in changes[:4]]
    assert changes[5].pre_hash is None


def test_an_update_in_the_second_of_another_event_says_that_it_is_the_later() -> None:
    ending = change_of(timeline("A-same-second-tie/1-trial_will_end.json"))
    updated = change_of(timeline("A-same-second-tie/2-updated-active.json"))
    assert ending.occurred_at == updated.occurred_at
    assert (ending.pre_hash, updated.pre_hash) == (None, ending.post_hash)


def test_two_events_for_one_change_are_equal_edges() -> None:
    one, other = (change_of(timeline(f"C-two-events-one-change/{name}.json")) for name in (1, 2))
    assert one.event_id != other.event_id
    assert (one.pre_hash, one.post_hash) == (other.pre_hash, other.post_hash)


def test_every_status_is_kept_as_it_is() -> None:
    for path in stripe_timeline("B2-every-status") or ["B2-every-status"]:
        assert path.endswith(f"/{change_of(timeline(path)).state.status}.json")


def test_an_expanded_customer_is_kept_as_its_id() -> None:
    assert change_of(timeline("I-odd/6-customer-expanded-in-subscription.json")).state.customer == "cus_derived_0001"


def test_of_several_items_the_period_that_ends_last_counts() -> None:
    state = change_of(timeline("I-odd/8-multi-item-mixed-periods.json")).state
    ends = [item.current_period_end for item in state.items]
    assert len(set(ends)) == 2
    assert state.current_period_end == max(end for end in ends if end is not None)


@pytest.mark.parametrize("name", ["4-api_version-null-request-null", "9-request-string-pre-2017"])
def test_an_envelope_of_an_odd_shape_changes_nothing(name: str) -> None:
    change = change_of(timeline(f"I-odd/{name}.json"))
    assert (change.external_id, change.state.status) == ("sub_derived_0001", "active")
