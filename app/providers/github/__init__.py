"""GitHub: its signature, its deliveries, and what they mean.

https://docs.github.com/en/webhooks
"""

from collections.abc import Mapping
from datetime import datetime

from app.errors import NotAnEvent
from app.outcomes import Reason
from app.providers.base import Delivery, Ignored, Meaning, Request, Source
from app.providers.github.events import FORM, contradicts, object_id_of, payload_of, read_envelope
from app.providers.github.signature import HEADER, verify
from app.providers.json_body import canonical_hash

_KEPT = frozenset(
    {
        "content-type",
        "user-agent",
        "x-github-delivery",
        "x-github-event",
        "x-github-hook-id",
        "x-github-hook-installation-target-id",
        "x-github-hook-installation-target-type",
    }
)


class GitHubProvider:
    """GitHub, which never sends a delivery again by itself: what is refused is lost unless somebody asks for it."""

    name = "github"
    retries = False
    namespace_per_source = True
    has_modes = False
    content_types = frozenset({"application/json", FORM})
    headers = _KEPT
    default_max_body_bytes = 25_000_000
    default_deadline_seconds = 8.0

    def key_of(self, secret: bytes) -> bytes:
        """The secret as it stands."""
        return secret

    def read(self, source: Source, request: Request, now: datetime) -> Delivery:
        """Verify, decode, name.

        The namespace holds the hook, because two hooks send one GUID with two bodies (github/docs#32822).

        Raises:
            SignatureError: see `signature.verify`.
            PayloadError: signed by GitHub, but no event.
        """
        label = verify(source.secrets, request.headers.get(HEADER), request.body)
        event = payload_of(request)
        envelope = read_envelope(request.headers, event, now)
        return Delivery(
            source=source,
            provider=self.name,
            namespace=f"github:{source.namespace or source.name}:{envelope.hook_id or 'none'}",
            event_id=envelope.guid,
            type=envelope.type,
            occurred_at=envelope.occurred_at,
            week=envelope.week,
            object_id=object_id_of(envelope.name, event),
            api_version=None,
            payload_hash=canonical_hash(event, without=frozenset()),
            event=event,
            body=request.body,
            headers=_kept(request.headers),
            secret_label=label,
            received_at=now,
        )

    def recall(self, source: Source, body: bytes, received_at: datetime) -> Delivery:
        """A stored body alone does not say which delivery it was; no row asks for it.

        Raises:
            NotAnEvent: always.
        """
        message = f"a body of {source.name} stored at {received_at} ({len(body)} bytes) does not name its event"
        raise NotAnEvent(message)

    def changes(self, delivery: Delivery) -> Meaning:
        """Every event is recorded; none changes a row."""
        name = delivery.type.partition(".")[0]
        if contradicts(name, delivery.event):
            return Ignored(Reason.NAME_MISMATCH)
        return Ignored(Reason.NO_PROJECTION)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name in _KEPT}
