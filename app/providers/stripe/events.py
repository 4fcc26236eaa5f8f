"""Stripe's two envelopes, snapshot events and thin ones, read into one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from app.clock import monday_of
from app.errors import NotAnEvent
from app.providers.base import FOREVER
from app.providers.json_body import storable, substituted

THIN = "v2.core.event"
"""The `object` of a thin event: https://docs.stripe.com/api/v2/core/events/object"""

MAX_ID_CHARACTERS = 255

LAST_SECOND = 253_402_300_799
"""The end of the year 9999, the last that both Python and PostgreSQL hold as we use them."""

_RFC3339 = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})")


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an event says about itself.

    `account` is None for the account that owns the endpoint. `week` is the ledger's: `FOREVER` for objects of a test
    clock, whose times are made up. `twin_id` is the snapshot event of a thin one.
    """

    id: str
    type: str
    account: str | None
    livemode: bool
    occurred_at: datetime
    week: date
    object_id: str | None
    api_version: str | None
    twin_id: str | None = None

    def namespace(self, default: str | None) -> str:
        """Where the event's ids are unique; `default` is the source's own namespace."""
        return f"stripe:{self.account or default or 'self'}:{'live' if self.livemode else 'test'}"


def is_thin(event: Mapping[str, Any]) -> bool:
    """Whether the event only says that something happened, without the object."""
    return event.get("object") == THIN


def is_live(event: Mapping[str, Any]) -> bool:
    """Whether the event is of live mode; one that does not say counts as a test, which can do the least harm."""
    return event.get("livemode") is True


def read_envelope(event: Any) -> Envelope:
    """Read a decoded body.

    Raises:
        NotAnEvent: it is no event of Stripe's; the message names what is missing.
    """
    if not isinstance(event, dict):
        message = "the body is not a JSON object"
        raise NotAnEvent(message)
    if is_thin(event):
        return _thin(event)
    if event.get("object", "event") != "event":
        message = "the body's `object` is not `event`: it is a bare object, or of another kind"
        raise NotAnEvent(message)
    return _snapshot(event)


def _snapshot(event: Mapping[str, Any]) -> Envelope:
    """An event that carries its object.

    https://docs.stripe.com/api/events/object
    """
    data = event.get("data")
    subject = data.get("object") if isinstance(data, dict) else None
    if not isinstance(subject, dict):
        message = "the event has no object `data.object`"
        raise NotAnEvent(message)
    occurred_at = _seconds(event.get("created"))
    return Envelope(
        id=_required(event, "id"),
        type=_required(event, "type"),
        account=None if event.get("account") is None else _required(event, "account"),
        livemode=_livemode(event),
        occurred_at=occurred_at,
        week=monday_of(occurred_at) if subject.get("test_clock") is None else FOREVER,
        object_id=_identifier(subject.get("id")),
        api_version=_label(event.get("api_version")),
    )


def _thin(event: Mapping[str, Any]) -> Envelope:
    """A thin event: `context` stands for `account`, and its ids live where its twin's do."""
    occurred_at = _rfc3339(event.get("created"))
    related = event.get("related_object")
    return Envelope(
        id=_required(event, "id"),
        type=_required(event, "type"),
        account=_account_of_context(event),
        livemode=_livemode(event),
        occurred_at=occurred_at,
        week=monday_of(occurred_at),
        object_id=_identifier(related.get("id")) if isinstance(related, dict) else None,
        api_version=None,
        twin_id=_identifier(event.get("snapshot_event")),
    )


def _account_of_context(event: Mapping[str, Any]) -> str | None:
    """`org_…/acct_…` names the account last; another context is taken whole."""
    if event.get("context") is None:
        return None
    context = _required(event, "context")
    last = context.rpartition("/")[2]
    return last if last.startswith("acct_") else context


def _required(event: Mapping[str, Any], key: str) -> str:
    value = _identifier(event.get(key))
    if value is None:
        message = f"the event's `{key}` is not a text of 1 to {MAX_ID_CHARACTERS} storable characters"
        raise NotAnEvent(message)
    return value


def _identifier(value: Any) -> str | None:
    """The value if it can be a key. One with a NUL or a lone surrogate cannot: substituted, it could equal another."""
    if isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARACTERS and storable(value):
        return value
    return None


def _label(value: Any) -> str | None:
    return substituted(value)[:MAX_ID_CHARACTERS] if isinstance(value, str) else None


def _livemode(event: Mapping[str, Any]) -> bool:
    if not isinstance(event.get("livemode", False), bool):
        message = "the event's `livemode` is neither true nor false"
        raise NotAnEvent(message)
    return is_live(event)


def _seconds(value: Any) -> datetime:
    if type(value) is not int or not 0 <= value <= LAST_SECOND:  # a bool is an int to isinstance
        message = "the event's `created` is not a time in whole seconds"
        raise NotAnEvent(message)
    return datetime.fromtimestamp(value, UTC)


def _rfc3339(value: Any) -> datetime:
    message = "the thin event's `created` is not an RFC 3339 time since 1970"
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise NotAnEvent(message)
    try:
        moment = datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise NotAnEvent(message) from error
    if moment.timestamp() < 0:
        raise NotAnEvent(message)
    return moment
