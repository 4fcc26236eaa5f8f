"""GitHub's deliveries: which event a request is, when it happened, and what it is about.

The signature covers the body alone. The GUID and the event's name are headers that nobody signed: they name a delivery,
and nothing that could be gained by forging them may follow from them.
https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import unquote_to_bytes
from uuid import UUID

from app.clock import monday_of
from app.errors import NotAnEvent
from app.providers.base import FOREVER, Request
from app.providers.json_body import decode, substituted

FORM = "application/x-www-form-urlencoded"

_GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_HOOK_ID = re.compile(r"\d{1,20}")
_ACTION_LIMIT = 100
MAX_FORM_FIELDS = 10
"""GitHub sends one; what follows this many is taken for a part of the last."""
_GREGORIAN = datetime(1582, 10, 15, tzinfo=UTC)
"""Where the time in a version 1 UUID counts from, in units of 100 ns (RFC 9562)."""

_TOLD_BY = {
    "issues": {"issue"},
    "marketplace_purchase": {"marketplace_purchase"},
    "ping": {"zen", "hook_id"},
    "pull_request": {"pull_request", "number"},  # the events of its reviews have no `number`
    "push": {"ref", "before", "after"},  # create, delete and workflow_dispatch have a `ref` too
    "sponsorship": {"sponsorship"},
}
"""Keys that the body of an event always has; without them the name is another event's. An issue's comment still passes
for an issue: no key tells them apart that a new action could not bring."""

_BIGINT = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What names one delivery. `week` is the ledger's partition; `occurred_at` is when GitHub made the delivery."""

    guid: str
    name: str
    action: str | None
    hook_id: str | None
    occurred_at: datetime
    week: date

    @property
    def type(self) -> str:
        """The event's name, with its action where it has one."""
        return self.name if self.action is None else f"{self.name}.{self.action}"


def payload_of(request: Request) -> Mapping[str, Any]:
    """The JSON object of a body, which the signature has been checked for already.

    Raises:
        NotJson: no JSON in UTF-8, or too deep.
        NotAnEvent: a form without exactly one `payload`, or JSON that is no object.
    """
    body = request.body
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == FORM:
        body = _form_payload(body)
    event = decode(body)
    if not isinstance(event, dict):
        message = "the payload is no JSON object"
        raise NotAnEvent(message)
    return event


def _form_payload(body: bytes) -> bytes:
    """The bytes of the form's one `payload`; any other field is passed over."""
    fields = (field.partition(b"=") for field in body.split(b"&", MAX_FORM_FIELDS))
    payloads = [value for name, _, value in fields if name == b"payload"]
    if len(payloads) != 1:
        message = "the form has no field `payload`, or several"
        raise NotAnEvent(message)
    return unquote_to_bytes(payloads[0].replace(b"+", b" "))


def read_envelope(headers: Mapping[str, str], event: Mapping[str, Any], now: datetime) -> Envelope:
    """Name a delivery by its headers and the action in its body.

    A version 1 GUID holds the time at which GitHub made it, and every redelivery has the same GUID. Any other GUID has
    no time: the delivery happened `now`, and its key is kept for ever.

    Raises:
        NotAnEvent: the GUID or the name is missing or has another form.
    """
    guid = headers.get("x-github-delivery", "")
    if _GUID.fullmatch(guid) is None:
        message = "the X-GitHub-Delivery header is not a GUID"
        raise NotAnEvent(message)
    name = headers.get("x-github-event", "")
    if _NAME.fullmatch(name) is None:
        message = "the X-GitHub-Event header is not an event's name"
        raise NotAnEvent(message)
    action = event.get("action")
    hook_id = headers.get("x-github-hook-id", "")
    made_at = _time_in(UUID(guid))
    return Envelope(
        guid=guid.lower(),
        name=name,
        action=substituted(action)[:_ACTION_LIMIT] if isinstance(action, str) and action else None,
        hook_id=hook_id if _HOOK_ID.fullmatch(hook_id) else None,
        occurred_at=made_at or now,
        week=FOREVER if made_at is None else monday_of(made_at),
    )


def _time_in(guid: UUID) -> datetime | None:
    """The time inside a version 1 GUID, which is in the year 5236 at the latest; None in any other."""
    return _GREGORIAN + timedelta(microseconds=guid.time // 10) if guid.version == 1 else None


def object_id_of(name: str, event: Mapping[str, Any]) -> str | None:
    """What the event is about: `account:{id}`, `sponsorship:{node id}`, or `{name}:{id}`; None where it has no id."""
    if name == "marketplace_purchase":
        return _numbered("account", _inner(_inner(event, "marketplace_purchase"), "account"))
    if name == "sponsorship":
        node_id = _inner(event, "sponsorship").get("node_id")
        return f"sponsorship:{substituted(node_id)[:200]}" if isinstance(node_id, str) and node_id else None
    key = "issue" if name in ("issues", "issue_comment") else name
    return _numbered(key, _inner(event, key))


def contradicts(name: str, event: Mapping[str, Any]) -> bool:
    """Whether the body cannot be of an event of this name."""
    told_by = _TOLD_BY.get(name)
    return told_by is not None and not told_by <= event.keys()


def _inner(event: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = event.get(key)
    return value if isinstance(value, dict) else {}


def _numbered(kind: str, holder: Mapping[str, Any]) -> str | None:
    number = holder.get("id")
    return f"{kind}:{number}" if type(number) is int and number in _BIGINT else None  # a bool is an int to isinstance
