"""Signed requests of Stripe for the tests of its provider; the bytes that were signed are the bytes that are sent."""

import json
from datetime import UTC, datetime
from typing import Any

from app.providers.base import Delivery, Ignored, Request, Secret, Source
from app.providers.stripe import StripeProvider
from app.providers.stripe.signature import sign

SECRET = b"whsec_0123456789abcdef"
T = 1_767_225_600
NOW = datetime.fromtimestamp(T, UTC)
SOURCE = Source("stripe", "stripe", (Secret("main", SECRET),))
STRIPE = StripeProvider()


def signed(body: bytes, **headers: str) -> Request:
    return Request({"stripe-signature": sign(SECRET, T, body), **headers}, body)


def read(event: Any, source: Source = SOURCE) -> Delivery:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    return STRIPE.read(source, signed(body), NOW)


def snapshot(event_type: str = "quantum.flux.updated", **changes: Any) -> dict[str, Any]:
    """A small event; `changes` replace its keys, and a None leaves the key out."""
    event = {
        "id": "evt_1",
        "object": "event",
        "api_version": "2026-06-24.dahlia",
        "created": T,
        "data": {"object": {"id": "qf_1", "object": "quantum.flux"}},
        "livemode": False,
        "pending_webhooks": 2,
        "type": event_type,
    } | changes
    return {key: value for key, value in event.items() if value is not None}


def ignored(event: Any, source: Source = SOURCE) -> str:
    """The reason for which an event changes nothing."""
    meaning = STRIPE.changes(read(event, source))
    assert isinstance(meaning, Ignored)
    return meaning.reason
