"""What a verified JSON body becomes: a value, a hash that ignores how it was written, and text that can be stored."""

import hashlib
import json
import math
import re
from typing import Any, NoReturn

import orjson

from app.errors import NotJson

MAX_DEPTH = 128
"""Deeper nesting is no webhook; the limit is far under what any parser here recurses to."""

_NO_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STRING = re.compile(rb'"[^"]*"?')

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""What PostgreSQL text cannot hold: NUL, and surrogates that have no partner."""


def decode(body: bytes) -> Any:
    """The value of a JSON body.

    Takes what senders' JSON libraries write and orjson refuses: lone surrogates, integers of any size up to 4300
    digits. An integer over 64 bits may come back as a float.

    Raises:
        NotJson: no JSON, no UTF-8, NaN or an infinity, or nested deeper than `MAX_DEPTH`.
    """
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _deeper_than_allowed(body):
        message = f"the body is nested deeper than {MAX_DEPTH} levels, or its brackets do not close"
        raise NotJson(message)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return _decode_leniently(body)


def _deeper_than_allowed(body: bytes) -> bool:
    """Whether brackets outside strings nest too deep, or do not close; in passes of C speed, for bodies of megabytes.

    Where quotes are adjacent once all else is gone, either a string held no bracket or two met: both may go.
    """
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    quoted = unescaped.translate(_ONE_KIND, delete=_NO_STRUCTURE)
    brackets = _STRING.sub(b"", quoted.replace(b'""', b""))
    for _ in range(MAX_DEPTH):
        if b"[]" not in brackets:
            break
        brackets = brackets.replace(b"[]", b"")  # each pass takes the innermost level away
    return bool(brackets)


def _decode_leniently(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        message = "the body is not JSON in UTF-8"
        raise NotJson(message) from error


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        message = "a number is too large for a double"
        raise ValueError(message)
    return number


def canonical_hash(value: Any, without: frozenset[str]) -> bytes:
    """SHA-256 of the value, whatever its key order and spacing were; `without` names top-level keys to leave out."""
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key not in without}
    try:
        canonical = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a lone surrogate, or an integer over 64 bits
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    return hashlib.sha256(canonical).digest()


def storable(text: str) -> bool:
    """Whether PostgreSQL text can hold it."""
    return _UNSTORABLE.search(text) is None


def substituted(text: str) -> str:
    """The text with U+FFFD, which readers see, where PostgreSQL text could not hold it."""
    return _UNSTORABLE.sub("\ufffd", text)


def as_stored(value: Any) -> Any:
    """The value as `jsonb` can hold it: text substituted, and integers beyond 64 bits as text."""
    if isinstance(value, str):
        return substituted(value)
    if isinstance(value, dict):
        return {substituted(key): as_stored(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_stored(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return str(value)
    return value
