"""Realistic Stripe events, in the shape of a recent API version and printed as Stripe prints them. Pure."""

import json
import random
import string
from collections.abc import Mapping
from copy import deepcopy
from datetime import datetime
from typing import Any

API_VERSION = "2026-06-24.dahlia"
MONTH_SECONDS = 30 * 86400

Event = dict[str, Any]


class Ids:
    """Fresh ids that look like Stripe's; the same seed gives the same ids."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def new(self, prefix: str, length: int = 24) -> str:
        """One id, for example `sub_1…`."""
        alphabet = string.ascii_letters + string.digits
        return f"{prefix}_1{''.join(self._rng.choices(alphabet, k=length - 1))}"


def printed(event: Mapping[str, Any]) -> bytes:
    """The bytes as Stripe sends them: two spaces of indent, characters as they are, a lone surrogate as its escape."""
    return json.dumps(event, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")


def subscription(ids: Ids, *, created: int) -> dict[str, Any]:
    """A new monthly subscription whose first payment is not through yet."""
    subscription_id = ids.new("sub")
    price = {
        "id": ids.new("price"),
        "object": "price",
        "currency": "eur",
        "nickname": "Größe M 🚀",
        "product": ids.new("prod", 14),
        "recurring": {"interval": "month", "interval_count": 1, "usage_type": "licensed"},
        "type": "recurring",
        "unit_amount": 2900,
    }
    item = {
        "id": ids.new("si", 14),
        "object": "subscription_item",
        "created": created,
        "current_period_start": created,
        "current_period_end": created + MONTH_SECONDS,
        "price": price,
        "quantity": 5,
        "subscription": subscription_id,
    }
    return {
        "id": subscription_id,
        "object": "subscription",
        "billing_mode": {"type": "flexible"},
        "cancel_at": None,
        "cancel_at_period_end": False,
        "canceled_at": None,
        "collection_method": "charge_automatically",
        "created": created,
        "currency": "eur",
        "customer": ids.new("cus", 14),
        "ended_at": None,
        "items": {"object": "list", "data": [item], "has_more": False},
        "latest_invoice": ids.new("in"),
        "livemode": False,
        "metadata": {},
        "pause_collection": None,
        "start_date": created,
        "status": "incomplete",
        "trial_end": None,
    }


def event(ids: Ids, type_: str, object_: Mapping[str, Any], *, created: int, before: Event | None = None) -> Event:
    """One event; `before` becomes `data.previous_attributes`."""
    data: dict[str, Any] = {"object": deepcopy(dict(object_))}
    if before is not None:
        data["previous_attributes"] = before
    return {
        "id": ids.new("evt"),
        "object": "event",
        "api_version": API_VERSION,
        "created": created,
        "data": data,
        "livemode": False,
        "pending_webhooks": 1,
        "request": {"id": None, "idempotency_key": None},
        "type": type_,
    }


def lifecycle(now: datetime, rng: random.Random) -> list[Event]:
    """A subscription's life within the last hour, in its true order.

    Created and active in one second, with an invoice beside them that changes no row; past due and active again in
    another; about to be cancelled; ended.
    """
    ids = Ids(rng)
    start = int(now.timestamp()) - 3600 + rng.randrange(600)
    current = subscription(ids, created=start)
    events = [event(ids, "customer.subscription.created", current, created=start)]

    def update(at: int, **changes: Any) -> None:
        before = {name: current[name] for name in changes}
        current.update(changes)
        events.append(event(ids, "customer.subscription.updated", current, created=at, before=before))

    invoice = {"id": current["latest_invoice"], "object": "invoice", "customer": current["customer"], "status": "paid"}
    update(start, status="active")
    events.append(event(ids, "invoice.paid", invoice, created=start))
    update(start + 900, status="past_due")
    update(start + 900, status="active")
    end = start + MONTH_SECONDS
    update(start + 1800, cancel_at_period_end=True, cancel_at=end, canceled_at=start + 1800)
    current.update(status="canceled", ended_at=start + 2700, cancel_at_period_end=False)
    events.append(event(ids, "customer.subscription.deleted", current, created=start + 2700))
    return events
