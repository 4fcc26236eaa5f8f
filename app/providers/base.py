"""The seam between the path and whoever sends: sources, requests, deliveries, and what a provider must know."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, Protocol, TypeAlias

from app.billing.changes import SubscriptionChange
from app.outcomes import Reason

FOREVER = date(1970, 1, 5)
"""The ledger week of keys that carry no trustworthy time of their own; its partition is never dropped."""

LiveMode: TypeAlias = Literal["any", "live", "test"]


@dataclass(frozen=True, slots=True)
class Secret:
    """One signing secret and the label that tells operators which it was; the value never shows in a repr."""

    label: str
    value: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Source:
    """A configured inlet, `POST /webhooks/{name}`.

    `namespace` of None means the provider's own default. `shared` allows another source with the same namespace.
    `publish_events` asks for a message `provider.event` for every event that is recorded.
    """

    name: str
    provider: str
    secrets: tuple[Secret, ...]
    namespace: str | None = None
    tenant: str = "default"
    livemode: LiveMode = "any"
    shared: bool = False
    publish_events: bool = False
    max_body_bytes: int = 1_000_000
    deadline_seconds: float = 3.0
    tolerance_seconds: int = 300


@dataclass(frozen=True, slots=True)
class Request:
    """What arrived: header names in lower case, the body as it was on the wire."""

    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One verified request. Only `Provider.read` makes one, so who holds it holds bytes whose sender is proved.

    `week` is the ledger's partition, computed from the event alone. `payload_hash` is of the canonical event without
    what legitimately varies between deliveries. `twin_id` names the snapshot event of a thin one.
    """

    source: Source
    provider: str
    namespace: str
    event_id: str
    type: str
    occurred_at: datetime
    week: date
    object_id: str | None
    api_version: str | None
    payload_hash: bytes
    event: Mapping[str, Any] = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    secret_label: str
    received_at: datetime
    twin_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ignored:
    """The event changes none of our rows, and why."""

    reason: Reason


Change: TypeAlias = SubscriptionChange
Meaning: TypeAlias = Sequence[Change] | Ignored


class Provider(Protocol):
    """Who sends. Pure: no database, no network, no clock but `now`.

    `retries` says whether the sender tries again after a non-2xx answer; where it does not, the path keeps trying
    what it still holds. `namespace_per_source`: a source that names no namespace has its own name for one. `has_modes`:
    events are live or tests, and their namespaces say which. `headers` are the allow-listed request headers that the
    inbox keeps, in lower case.
    """

    name: str
    retries: bool
    namespace_per_source: bool
    has_modes: bool
    content_types: frozenset[str]
    headers: frozenset[str]
    default_max_body_bytes: int
    default_deadline_seconds: float

    def key_of(self, secret: bytes) -> bytes:
        """The MAC's key of a secret as it was configured.

        Raises:
            ValueError: the secret does not have the provider's form; the message does not hold it.
        """
        ...

    def read(self, source: Source, request: Request, now: datetime) -> Delivery:
        """Verify the signature on the raw bytes, then decode and name the event.

        Raises:
            SignatureError: the request is not proved to come from the provider; nothing may be stored.
            PayloadError: the bytes are the provider's, but no event.
        """
        ...

    def recall(self, source: Source, body: bytes, received_at: datetime) -> Delivery:
        """The delivery of a body that the inbox holds: `read` proved it when it came, and is not asked again.

        Raises:
            PayloadError: the bytes are no event.
        """
        ...

    def changes(self, delivery: Delivery) -> Meaning:
        """What the event means for our rows.

        Raises:
            ProjectionError: the object does not have the shape that its type promises; the delivery is parked.
        """
        ...
