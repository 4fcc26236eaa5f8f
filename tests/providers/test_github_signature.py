"""GitHub's signature, over the raw body alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ConfigurationError, SignatureError, SignatureMalformed, SignatureMismatch, SignatureMissing
from app.providers.base import Secret
from app.providers.github.signature import sign, verify

SECRET = b"It's a Secret to Everybody"
SECRETS = (Secret("old", b"before"), Secret("new", SECRET))


@pytest.mark.parametrize(
    ("secret", "body", "expected"),
    [
        (SECRET, b"Hello, World!", "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"),
        (b"secret", b"data", "1b2c16b75bd2a870c114153ccda5bcfca63314bc722fa160d690de133ccbb9db"),
    ],
)
def test_published_vectors_verify(secret: bytes, body: bytes, expected: str) -> None:
    assert sign(secret, body) == f"sha256={expected}"
    assert verify([Secret("main", secret)], f"sha256={expected.upper()}", body) == "main"


def test_any_secret_verifies_and_is_told_by_its_label() -> None:
    assert verify(SECRETS, sign(b"before", b"x"), b"x") == "old"
    assert verify(SECRETS, sign(SECRET, b"x"), b"x") == "new"


@pytest.mark.parametrize(
    ("header", "error"),
    [
        (None, SignatureMissing),
        ("", SignatureMalformed),
        ("sha1=" + "0" * 40, SignatureMalformed),
        ("sha256=" + "0" * 63, SignatureMalformed),
        ("sha256=" + "0" * 64 + "\n", SignatureMalformed),
        ("sha256=" + "é" * 64, SignatureMalformed),
        ("sha256=" + "0" * 64, SignatureMismatch),
        (sign(b"another", b"x"), SignatureMismatch),
        (sign(b"", b"x"), SignatureMismatch),
    ],
)
def test_what_is_not_proved_is_refused(header: str | None, error: type[SignatureError]) -> None:
    with pytest.raises(error):
        verify(SECRETS, header, b"x")


def test_a_source_without_a_usable_secret_proves_nothing() -> None:
    with pytest.raises(ConfigurationError):
        verify([Secret("empty", b"")], sign(b"", b"x"), b"x")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=100))
def test_no_header_raises_anything_else(header: str) -> None:
    with pytest.raises(SignatureError):
        verify(SECRETS, header, b"x")
