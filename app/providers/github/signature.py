"""GitHub's signature: `X-Hub-Signature-256`, over the raw body as it was sent, form-encoded or not.

https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
"""

import hashlib
import hmac
import re
from collections.abc import Sequence

from app.errors import ConfigurationError, SignatureMalformed, SignatureMismatch, SignatureMissing
from app.providers.base import Secret

HEADER = "x-hub-signature-256"

_FORM = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)


def sign(secret: bytes, body: bytes) -> str:
    """The header's value for a body; the secret's bytes are the key as they stand."""
    return f"sha256={hmac.digest(secret, body, hashlib.sha256).hex()}"


def verify(secrets: Sequence[Secret], header: str | None, body: bytes) -> str:
    """The label of the secret that signed the body. SHA-1 signatures are not looked at.

    Raises:
        SignatureMissing: there is no header; a hook without a secret sends none.
        SignatureMalformed: the header is not `sha256=` and 64 hexadecimal digits.
        SignatureMismatch: no secret of the source signed this body.
        ConfigurationError: the source has no usable secret.
    """
    usable = [secret for secret in secrets if secret.value]
    if not usable:
        message = "the source has no secret to verify with"
        raise ConfigurationError(message)
    if header is None:
        message = "the X-Hub-Signature-256 header is missing: give the hook a secret"
        raise SignatureMissing(message)
    found = _FORM.fullmatch(header)
    if found is None:
        message = "the X-Hub-Signature-256 header is not sha256= and 64 hexadecimal digits"
        raise SignatureMalformed(message)
    claimed = bytes.fromhex(found[1])
    matching = [
        secret.label
        for secret in usable
        if hmac.compare_digest(hmac.digest(secret.value, body, hashlib.sha256), claimed)
    ]
    if not matching:
        message = "the signature does not belong to this body under any secret of the source"
        raise SignatureMismatch(message)
    return matching[0]
