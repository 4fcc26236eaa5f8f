"""Stripe's subscription, in the shape of any API version since 2020, as our columns.

https://docs.stripe.com/api/subscriptions/object and, for the period that moved to the items,
https://docs.stripe.com/changelog/basil/2025-03-31/deprecate-subscription-current-period-start-and-end
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.billing.changes import NOTHING, SubscriptionChange, SubscriptionItem, SubscriptionState, state_hash
from app.errors import ProjectionError
from app.providers.base import Delivery
from app.providers.stripe.fields import flag, moment, nested, reference, text, whole_number
from app.providers.stripe.previous import put_back

_CREATED = "customer.subscription.created"
_DELETED = "customer.subscription.deleted"


def change(delivery: Delivery, object_id: str) -> SubscriptionChange:
    """What a `customer.subscription.*` event says about its subscription.

    Raises:
        ProjectionError: the object is no subscription, or a column cannot be read from it.
    """
    data = delivery.event["data"]
    subscription = data["object"]
    if subscription.get("object", "subscription") != "subscription":
        message = f"the object of {delivery.type} is not a subscription"
        raise ProjectionError(message)
    state = state_of(subscription)
    if delivery.type == _DELETED and not state.terminal:
        state = replace(state, status="canceled")
    return SubscriptionChange(
        namespace=delivery.namespace,
        external_id=object_id,
        event_id=delivery.event_id,
        occurred_at=delivery.occurred_at,
        state=state,
        pre_hash=_pre_hash(delivery.type, subscription, data.get("previous_attributes")),
        post_hash=state_hash(state),
        created_at=moment(subscription, "created") or moment(subscription, "start_date"),
    )


def _pre_hash(event_type: str, subscription: Mapping[str, Any], previous: Any) -> bytes | None:
    """The hash of the state before the event; None where the event has no diff that leads back to one."""
    if event_type == _CREATED:
        return NOTHING
    if event_type == _DELETED or not isinstance(previous, dict) or not previous:
        return None
    try:
        return state_hash(state_of(put_back(subscription, previous)))
    except ProjectionError:  # the state after is sound: a diff that is not only costs its edge
        return None


def state_of(subscription: Mapping[str, Any]) -> SubscriptionState:
    """The state columns.

    A place that newer versions use goes before the one that it replaced, and nothing but `status` has to be there.

    Raises:
        ProjectionError: there is no status, or a value that its column cannot hold.
    """
    status = text(subscription, "status")
    if not status:
        message = "`status` is missing"
        raise ProjectionError(message)
    items = _items(subscription)
    first = items[0] if items else _NO_ITEM
    ends = [item.current_period_end for item in items if item.current_period_end is not None]
    return SubscriptionState(
        status=status,
        customer=reference(subscription, "customer"),
        plan=first.plan,
        product=first.product,
        quantity=first.quantity,
        unit_amount=first.unit_amount,
        currency=first.currency,
        interval=first.interval,
        interval_count=first.interval_count,
        current_period_end=max(ends) if ends else moment(subscription, "current_period_end"),
        trial_end=moment(subscription, "trial_end"),
        cancel_at=moment(subscription, "cancel_at"),
        cancel_at_period_end=flag(subscription, "cancel_at_period_end"),
        canceled_at=moment(subscription, "canceled_at"),
        ended_at=moment(subscription, "ended_at"),
        pause_behavior=text(nested(subscription, "pause_collection"), "behavior"),
        items=items,
    )


_NO_ITEM = SubscriptionItem(None, None, None, None, None, None, None, None, None)


def _items(subscription: Mapping[str, Any]) -> tuple[SubscriptionItem, ...]:
    """The lines. A subscription of one line may carry plan and quantity itself, and before basil it carries the period.

    So that one state has one hash whatever version rendered it, a line without a period of its own gets that one.
    """
    lines = _lines(subscription.get("items"))
    if not lines and subscription.get("plan") is not None:
        lines = [{}]
    inherited = {"current_period_end": subscription.get("current_period_end")}
    if len(lines) == 1:
        inherited |= {"plan": subscription.get("plan"), "quantity": subscription.get("quantity")}
    return tuple(_item(inherited | {key: value for key, value in line.items() if value is not None}) for line in lines)


def _lines(items: Any) -> list[Mapping[str, Any]]:
    lines = items.get("data") if isinstance(items, dict) else items
    if lines is None:
        return []
    if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        message = "`items` is not a list of objects"
        raise ProjectionError(message)
    return lines


def _item(line: Mapping[str, Any]) -> SubscriptionItem:
    """One line: its price since 2020-08-27, its plan before; tiered and decimal prices have no amount."""
    if line.get("price") is not None:
        kind, price = "price", _expanded(line, "price")
        amount, recurring = whole_number(price, "unit_amount"), nested(price, "recurring")
    else:
        kind, price = "plan", _expanded(line, "plan")
        amount, recurring = whole_number(price, "amount"), price
    return SubscriptionItem(
        id=text(line, "id"),
        plan=reference(line, kind),
        product=reference(price, "product"),
        quantity=whole_number(line, "quantity"),
        unit_amount=amount,
        currency=text(price, "currency"),
        interval=text(recurring, "interval"),
        interval_count=whole_number(recurring, "interval_count"),
        current_period_end=moment(line, "current_period_end"),
    )


def _expanded(line: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object behind a reference; empty where only its id is given."""
    return {} if isinstance(line.get(key), str) else nested(line, key)
