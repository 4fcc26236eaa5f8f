"""Stripe's signature: `Stripe-Signature: t=<seconds>,v1=<hex>[,v1=<hex>…][,v0=<hex>]` over `<t>.<raw body>`.

https://docs.stripe.com/webhooks#verify-manually
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from datetime import datetime

from app.errors import (
    ConfigurationError,
    SignatureMalformed,
    SignatureMismatch,
    SignatureMissing,
    TimestampOutOfTolerance,
)
from app.providers.base import Secret

HEADER = "stripe-signature"

_MAX_HEADER_CHARACTERS = 8192
"""Servers cap a header near here; Stripe's own have some 150 characters a secret."""

_MAX_SIGNATURES = 32
"""Stripe sends one `v1` per active secret: two while one is rolled."""

_CANONICAL_SECONDS = re.compile(r"0|[1-9][0-9]{0,11}")
"""Only what formats back to itself, so that the token that was signed is the time that is compared."""


def verify(secrets: Sequence[Secret], header: str | None, body: bytes, *, now: datetime, tolerance_seconds: int) -> str:
    """The label of the secret that signed the body.

    The MAC is checked before the time: an unproved `t` says nothing, so a wrong MAC is a mismatch whatever its time,
    and only a sender who holds a secret is told that its clock is off. The tolerance is two-sided and inclusive,
    in whole seconds as `t` is; Stripe's Python and Node libraries let any future `t` pass. `v0` never counts.

    Raises:
        SignatureMissing: there is no header.
        SignatureMalformed: the header is over its bounds, has no `v1`, or not one canonical `t`.
        SignatureMismatch: no `v1` is the MAC of these bytes under any of the secrets.
        TimestampOutOfTolerance: the MAC holds, but its time is too far from `now`.
        ConfigurationError: none of the secrets has a value, so nothing could be proved.
    """
    usable = [secret for secret in secrets if secret.value]
    if not usable:
        message = "a stripe source has no signing secret"
        raise ConfigurationError(message)
    if not header:
        message = "the Stripe-Signature header is missing"
        raise SignatureMissing(message)
    timestamp, signatures = _parse(header)
    label = _label_of_signer(usable, signatures, timestamp, body)
    if label is None:
        message = "no v1 signature belongs to this body under any secret of the source"
        raise SignatureMismatch(message)
    if abs(int(now.timestamp()) - int(timestamp)) > tolerance_seconds:
        message = f"the signed time is more than {tolerance_seconds} s from ours"
        raise TimestampOutOfTolerance(message)
    return label


def sign(secret: bytes, timestamp: int, body: bytes) -> str:
    """The header that Stripe would send; `secret` is the whole `whsec_…` as UTF-8, its prefix included."""
    return f"t={timestamp},v1={_mac(secret, str(timestamp), body)}"


def _parse(header: str) -> tuple[str, list[str]]:
    """The token of `t` as it was signed and every `v1`; other elements may come and are skipped."""
    if len(header) > _MAX_HEADER_CHARACTERS:
        message = f"the Stripe-Signature header is longer than {_MAX_HEADER_CHARACTERS} characters"
        raise SignatureMalformed(message)
    elements = [element.partition("=") for element in header.split(",")]
    timestamps = [value for key, _, value in elements if key == "t"]
    signatures = [value for key, _, value in elements if key == "v1"]
    if len(timestamps) != 1 or not _CANONICAL_SECONDS.fullmatch(timestamps[0]):
        message = "the Stripe-Signature header needs exactly one t, in whole seconds"
        raise SignatureMalformed(message)
    if not 0 < len(signatures) <= _MAX_SIGNATURES:
        message = f"the Stripe-Signature header needs one to {_MAX_SIGNATURES} v1 signatures"
        raise SignatureMalformed(message)
    return timestamps[0], signatures


def _label_of_signer(secrets: Sequence[Secret], signatures: Sequence[str], timestamp: str, body: bytes) -> str | None:
    candidates = [signature.encode("utf-8", "replace") for signature in signatures]
    for secret in secrets:
        expected = _mac(secret.value, timestamp, body).encode("ascii")
        if any(hmac.compare_digest(expected, candidate) for candidate in candidates):
            return secret.label
    return None


def _mac(secret: bytes, timestamp: str, body: bytes) -> str:
    mac = hmac.new(secret, f"{timestamp}.".encode("ascii"), hashlib.sha256)
    mac.update(body)
    return mac.hexdigest()
