"""Small Stripe subscription events, and the ways to deliver one: signed bytes, or a delivery already read."""

import json
from datetime import datetime
from typing import Any

from app.clock import utc_now
from app.providers.base import Delivery, Request, Secret, Source
from app.providers.stripe import StripeProvider
from app.providers.stripe.signature import sign

SECRET = b"whsec_test_secret_of_the_tests"
SOURCE = Source("stripe", "stripe", (Secret("main", SECRET),))
HOUR_AGO = int(utc_now().timestamp()) - 3600
"""The second around which most tests' events happen; fixed for a run, in the current week's partitions or the last."""


def subscription(
    event_id: str,
    status: str,
    *,
    at: int = 0,
    before: str | None = None,
    kind: str = "updated",
    object_id: str = "sub_1",
    account: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """One `customer.subscription.{kind}` event `at` seconds after `HOUR_AGO`.

    `before` is the status that the event's diff names; without it the event carries no diff.
    """
    data: dict[str, Any] = {
        "object": {
            "id": object_id,
            "object": "subscription",
            "status": status,
            "customer": "cus_1",
            "created": HOUR_AGO - 60,
            "cancel_at_period_end": False,
            "items": {"object": "list", "data": [{"id": "si_1", "quantity": 1, "price": {"id": "price_1"}}]},
        }
    }
    if before is not None:
        data["previous_attributes"] = {"status": before}
    event = {
        "id": event_id,
        "object": "event",
        "api_version": "2026-06-24.dahlia",
        "created": HOUR_AGO + at,
        "data": data,
        "livemode": False,
        "pending_webhooks": 1,
        "type": f"customer.subscription.{kind}",
        **changes,
    }
    return event if account is None else {**event, "account": account}


def life() -> list[dict[str, Any]]:
    """Six events: created, three updates of which two share a second, a bystander, and the end."""
    return [
        subscription("evt_1", "incomplete", kind="created"),
        subscription("evt_2", "active", at=5, before="incomplete"),
        subscription("evt_3", "past_due", at=9, before="active"),
        subscription("evt_4", "active", at=9, before="past_due"),
        subscription("evt_5", "active", at=9, kind="trial_will_end"),
        subscription("evt_6", "canceled", at=20, kind="deleted"),
    ]


def body_of(event: Any) -> bytes:
    """The bytes of an event as they are signed and sent."""
    return event if isinstance(event, bytes) else json.dumps(event, indent=2).encode()


def headers_of(body: bytes, *, secret: bytes = SECRET, at: datetime | None = None) -> dict[str, str]:
    """The headers of a signed request with these bytes."""
    timestamp = int((at or utc_now()).timestamp())
    return {"content-type": "application/json", "stripe-signature": sign(secret, timestamp, body)}


def delivery(event: Any, *, source: Source = SOURCE) -> Delivery:
    """A verified delivery of the event."""
    body, now = body_of(event), utc_now()
    return StripeProvider().read(source, Request(headers_of(body), body), now)
