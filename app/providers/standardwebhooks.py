"""Standard Webhooks: whoever follows that specification, verified, named and recorded.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from app.clock import monday_of
from app.errors import (
    ConfigurationError,
    NotAnEvent,
    SignatureMalformed,
    SignatureMismatch,
    SignatureMissing,
    TimestampOutOfTolerance,
)
from app.outcomes import Reason
from app.providers.base import FOREVER, Delivery, Ignored, Meaning, Request, Source
from app.providers.json_body import canonical_hash, decode, storable

_PREFIX = b"whsec_"
_KEY_BYTES = range(24, 65)
_MAX_ID = 255
_ID = re.compile(rf"[ -\-/-~]{{1,{_MAX_ID}}}")
_SECONDS = re.compile(r"0|[1-9][0-9]{0,11}")
_MAX_SIGNATURES = 32
_MAX_TYPE = 255


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The `webhook-signature` of a body under a decoded key."""
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


class StandardWebhooksProvider:
    """Any sender that follows Standard Webhooks; it is expected to try again after a refusal."""

    name = "standardwebhooks"
    retries = True
    namespace_per_source = True
    has_modes = False
    content_types = frozenset({"application/json"})
    headers = frozenset({"content-type", "user-agent", "webhook-id", "webhook-timestamp"})
    default_max_body_bytes = 1_000_000
    default_deadline_seconds = 3.0

    def key_of(self, secret: bytes) -> bytes:
        """The bytes behind `whsec_`, base64-decoded: 24 to 64 of them.

        Raises:
            ValueError: another form.
        """
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error as error:
            message = "is not base64, with or without whsec_ before it"
            raise ValueError(message) from error
        if len(key) not in _KEY_BYTES:
            message = f"decodes to {len(key)} bytes, not to 24 to 64"
            raise ValueError(message)
        return key

    def read(self, source: Source, request: Request, now: datetime) -> Delivery:
        """Verify, decode, name. The id is signed, and the same for every try of one message.

        Raises:
            SignatureError: a header is missing, malformed, or not of this body, or the time is out of tolerance.
            PayloadError: signed, but no event.
        """
        message_id, label = _verified(source, request, now)
        event = decode(request.body)
        if not isinstance(event, dict):
            message = "the payload is no JSON object"
            raise NotAnEvent(message)
        kind = event.get("type")
        if not isinstance(kind, str) or not 1 <= len(kind) <= _MAX_TYPE or not storable(kind):
            message = f"the event's `type` is not a text of 1 to {_MAX_TYPE} storable characters"
            raise NotAnEvent(message)
        happened_at = _moment(event.get("timestamp"))
        return Delivery(
            source=source,
            provider=self.name,
            namespace=f"standardwebhooks:{source.namespace or source.name}",
            event_id=message_id,
            type=kind,
            occurred_at=happened_at or now,
            week=FOREVER if happened_at is None else monday_of(happened_at),
            object_id=_object_id(event.get("data")),
            api_version=None,
            payload_hash=canonical_hash(event, without=frozenset()),
            event=event,
            body=request.body,
            headers={name: value for name, value in request.headers.items() if name in self.headers},
            secret_label=label,
            received_at=now,
        )

    def recall(self, source: Source, body: bytes, received_at: datetime) -> Delivery:
        """A stored body alone does not say which message it was; no row asks for it.

        Raises:
            NotAnEvent: always.
        """
        message = f"a body of {source.name} stored at {received_at} ({len(body)} bytes) does not name its event"
        raise NotAnEvent(message)

    def changes(self, delivery: Delivery) -> Meaning:
        """Every event is recorded; none changes a row."""
        del delivery
        return Ignored(Reason.NO_PROJECTION)


def _verified(source: Source, request: Request, now: datetime) -> tuple[str, str]:
    """The message's id and the label of the secret that signed it: the MAC first, then the time."""
    usable = [secret for secret in source.secrets if secret.value]
    if not usable:
        message = f"the source {source.name} has no secret to verify with"
        raise ConfigurationError(message)
    message_id, timestamp, signatures = (
        _required(request.headers, name) for name in ("webhook-id", "webhook-timestamp", "webhook-signature")
    )
    if _ID.fullmatch(message_id) is None:
        message = f"the webhook-id header is not 1 to {_MAX_ID} printable ASCII characters without a dot"
        raise SignatureMalformed(message)
    if _SECONDS.fullmatch(timestamp) is None:
        message = "the webhook-timestamp header is not a time in whole seconds"
        raise SignatureMalformed(message)
    claimed = list(_claimed(signatures))
    if not claimed:
        message = "the webhook-signature header has no v1 signature"
        raise SignatureMalformed(message)
    signed = b".".join((message_id.encode(), timestamp.encode(), request.body))
    for secret in usable:
        expected = hmac.digest(secret.value, signed, hashlib.sha256)
        if any(hmac.compare_digest(expected, candidate) for candidate in claimed):
            break
    else:
        message = "no v1 signature belongs to this message under any secret of the source"
        raise SignatureMismatch(message)
    if abs(int(now.timestamp()) - int(timestamp)) > source.tolerance_seconds:
        message = f"the signed time is more than {source.tolerance_seconds} s from ours"
        raise TimestampOutOfTolerance(message)
    return message_id, secret.label


def _required(headers: Mapping[str, str], name: str) -> str:
    if name not in headers:
        message = f"the {name} header is missing"
        raise SignatureMissing(message)
    return headers[name]


def _claimed(header: str) -> Iterable[bytes]:
    """The v1 signatures of a space-separated list; other versions and what cannot be decoded are passed over."""
    items = header.split(" ", _MAX_SIGNATURES)
    if len(items) > _MAX_SIGNATURES:
        message = f"the webhook-signature header has more than {_MAX_SIGNATURES} signatures"
        raise SignatureMalformed(message)
    for item in items:
        version, _, encoded = item.partition(",")
        if version == "v1" and encoded.isascii():
            try:
                yield base64.b64decode(encoded, validate=True)
            except binascii.Error:
                continue


def _moment(value: Any) -> datetime | None:
    """The event's own time, RFC 3339 with an offset; None where there is none that can be read."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
        return None if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _object_id(data: Any) -> str | None:
    identifier = data.get("id") if isinstance(data, dict) else None
    if isinstance(identifier, str) and 1 <= len(identifier) <= _MAX_ID and storable(identifier):
        return identifier
    return None
