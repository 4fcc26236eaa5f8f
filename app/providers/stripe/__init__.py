"""Stripe: its signature, its events, and what they mean.

https://docs.stripe.com/webhooks
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from app.outcomes import Reason
from app.providers.base import Change, Delivery, Ignored, Meaning, Request, Source
from app.providers.json_body import canonical_hash, decode
from app.providers.stripe import subscriptions
from app.providers.stripe.events import is_live, is_thin, read_envelope
from app.providers.stripe.signature import HEADER, verify

_LIVE_COUNTERS = frozenset({"pending_webhooks"})
"""What differs between two deliveries of one event: https://docs.stripe.com/api/events/object"""


def _subscription(delivery: Delivery, object_id: str) -> Sequence[Change]:
    return [subscriptions.change(delivery, object_id)]


_HANDLERS: tuple[tuple[str, Callable[[Delivery, str], Sequence[Change]]], ...] = (
    # https://docs.stripe.com/billing/subscriptions/webhooks: created, updated, deleted, paused, resumed,
    # trial_will_end, pending_update_applied, pending_update_expired; each carries the whole subscription.
    ("customer.subscription.", _subscription),
)
"""The types that change our rows, by prefix; every other is recorded and ignored."""


class StripeProvider:
    """Stripe, which tries a refused delivery again for three days."""

    name = "stripe"
    retries = True
    namespace_per_source = False
    has_modes = True
    content_types = frozenset({"application/json"})
    headers = frozenset({"content-type", "user-agent"})
    """Not `stripe-signature`: whoever read it beside the body could send both again while its time is in tolerance,
    and the label of the secret already says how the delivery was proved."""
    default_max_body_bytes = 1_000_000
    default_deadline_seconds = 3.0

    def key_of(self, secret: bytes) -> bytes:
        """The secret as it stands, `whsec_` included: unlike in Standard Webhooks nothing is stripped or decoded."""
        return secret

    def read(self, source: Source, request: Request, now: datetime) -> Delivery:
        """Verify, decode, name.

        Raises:
            SignatureError: see `signature.verify`.
            PayloadError: signed by Stripe, but no event.
        """
        label = verify(
            source.secrets,
            request.headers.get(HEADER),
            request.body,
            now=now,
            tolerance_seconds=source.tolerance_seconds,
        )
        headers = {name: value for name, value in request.headers.items() if name in self.headers}
        return self._named(source, request.body, headers, secret_label=label, received_at=now)

    def recall(self, source: Source, body: bytes, received_at: datetime) -> Delivery:
        """The delivery of a stored body, which was verified at receipt.

        Raises:
            PayloadError: no event.
        """
        return self._named(source, body, {}, secret_label="", received_at=received_at)

    def _named(
        self, source: Source, body: bytes, headers: Mapping[str, str], *, secret_label: str, received_at: datetime
    ) -> Delivery:
        event = decode(body)
        envelope = read_envelope(event)
        return Delivery(
            source=source,
            provider=self.name,
            namespace=envelope.namespace(source.namespace),
            event_id=envelope.id,
            type=envelope.type,
            occurred_at=envelope.occurred_at,
            week=envelope.week,
            object_id=envelope.object_id,
            api_version=envelope.api_version,
            payload_hash=canonical_hash(event, without=_LIVE_COUNTERS),
            event=event,
            body=body,
            headers=headers,
            secret_label=secret_label,
            received_at=received_at,
            twin_id=envelope.twin_id,
        )

    def changes(self, delivery: Delivery) -> Meaning:
        """What the event means.

        Raises:
            ProjectionError: the object does not have the shape that the event's type promises.
        """
        mode = "live" if is_live(delivery.event) else "test"
        if delivery.source.livemode not in ("any", mode):
            return Ignored(Reason.WRONG_MODE)
        if is_thin(delivery.event):
            return Ignored(Reason.THIN_WAITS_FOR_SNAPSHOT)
        handler = next((handler for prefix, handler in _HANDLERS if delivery.type.startswith(prefix)), None)
        if handler is None:
            return Ignored(Reason.NO_PROJECTION)
        if delivery.object_id is None:
            return Ignored(Reason.NO_OBJECT_ID)
        return handler(delivery, delivery.object_id)
