"""Reads one field of an object of Stripe's as the type of its column; what cannot be stored is refused by name."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from app.errors import ProjectionError
from app.providers.json_body import substituted
from app.providers.stripe.events import LAST_SECOND

_MAX_TEXT_CHARACTERS = 255
"""Stripe's ids and words are shorter; a longer text could not be indexed."""

_BIGINT = range(-(2**63), 2**63)


def text(holder: Mapping[str, Any], key: str) -> str | None:
    """A text, with U+FFFD for what PostgreSQL cannot hold.

    Raises:
        ProjectionError: there is a value, but no text of a sane length.
    """
    value = holder.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _MAX_TEXT_CHARACTERS:
        raise _refused(key, f"a text of at most {_MAX_TEXT_CHARACTERS} characters")
    return substituted(value)


def reference(holder: Mapping[str, Any], key: str) -> str | None:
    """The id of another object, given as the id or expanded.

    Raises:
        ProjectionError: there is a value, but neither a text nor an object.
    """
    value = holder.get(key)
    return text(value, "id") if isinstance(value, dict) else text(holder, key)


def whole_number(holder: Mapping[str, Any], key: str) -> int | None:
    """A whole number of 64 bits.

    Raises:
        ProjectionError: there is a value, but no such number.
    """
    value = holder.get(key)
    if value is None:
        return None
    if type(value) is not int or value not in _BIGINT:  # a bool is an int to isinstance
        raise _refused(key, "a whole number of 64 bits")
    return value


def moment(holder: Mapping[str, Any], key: str) -> datetime | None:
    """A time that is given in whole seconds.

    Raises:
        ProjectionError: there is a value, but no time from 1970 to 9999.
    """
    seconds = whole_number(holder, key)
    if seconds is None:
        return None
    if not 0 <= seconds <= LAST_SECOND:
        raise _refused(key, "a time from 1970 to 9999")
    return datetime.fromtimestamp(seconds, UTC)


def flag(holder: Mapping[str, Any], key: str) -> bool:
    """A truth value; False where it is absent.

    Raises:
        ProjectionError: there is a value, but neither true nor false.
    """
    value = holder.get(key)
    if value is not None and not isinstance(value, bool):
        raise _refused(key, "true or false")
    return bool(value)


def nested(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested object; empty where it is absent.

    Raises:
        ProjectionError: there is a value, but no object.
    """
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _refused(key, "an object")
    return value


def _refused(key: str, wanted: str) -> ProjectionError:
    return ProjectionError(f"`{key}` is not {wanted}")
