"""Messages: what we owe the outside, each a CloudEvent whose id derives from what it says."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

_ONCEHOOK = UUID("6f6e6365-686f-4f6b-8d65-737361676573")
"""The namespace of every message id (RFC 9562, version 5); changing it would make every message a new one."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `payload` is the whole CloudEvent 1.0 in structured mode, its times and dataclasses as they are."""

    message_id: UUID
    type: str
    subject: str
    payload: Mapping[str, Any]
    trace_context: Mapping[str, str] | None = None


def milestone(type_: str, subject: str, *, anchor: str, time: datetime, data: Mapping[str, Any]) -> Message:
    """A message that is sent once in an entity's life; its id derives from the type and the anchor alone."""
    return _message(uuid5(_ONCEHOOK, f"{type_}\n{anchor}"), type_, subject, time, data)


def state_message(type_: str, subject: str, *, version: int, time: datetime, data: Mapping[str, Any]) -> Message:
    """A message of one transition; its id derives from the row and the row's version."""
    return _message(uuid5(_ONCEHOOK, f"{type_}\n{subject}\n{version}"), type_, subject, time, data)


def provider_event(namespace: str, event_id: str, *, time: datetime, data: Mapping[str, Any]) -> Message:
    """The message of one recorded event; its id derives from the event's own key."""
    subject = f"event/{namespace}/{event_id}"
    return _message(uuid5(_ONCEHOOK, f"provider.event\n{subject}"), "provider.event", subject, time, data)


def rfc3339(moment: datetime | None) -> str | None:
    """The text of a time in messages: UTC, with `Z`."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _message(message_id: UUID, type_: str, subject: str, time: datetime, data: Mapping[str, Any]) -> Message:
    payload = {
        "specversion": "1.0",
        "id": str(message_id),
        "source": "/oncehook",
        "type": type_,
        "subject": subject,
        "time": rfc3339(time),
        "datacontenttype": "application/json",
        "data": dict(data),
    }
    return Message(message_id, type_, subject, payload)
