"""Events from a file: one, a JSON array, or one a line; with fresh ids and times unless they are to go as they are."""

import json
import random
from datetime import datetime
from pathlib import Path
from typing import Any

from app.errors import ConfigurationError
from app.send.stripe_events import Event, Ids, printed

RECENT_SECONDS = 300


def bodies_of(path: Path, now: datetime, rng: random.Random, *, as_is: bool) -> list[bytes]:
    """The bodies to send, in the file's order.

    With `as_is` a file's one event, or each of its lines, is sent byte for byte; the elements of an array are printed
    anew. Otherwise every event gets a fresh id, and all are moved in time so that the latest happened in the last
    `RECENT_SECONDS`; the distances between them stay.

    Raises:
        ConfigurationError: the file cannot be read or holds no event.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigurationError(message) from error
    found = _events(path, content)
    if as_is:
        return [body for _, body in found]
    events = [event for event, _ in found]
    ids = Ids(rng)
    stamps = [event["created"] for event in events if isinstance(event.get("created"), int)]
    shift = int(now.timestamp()) - rng.randrange(RECENT_SECONDS) - max(stamps) if stamps else 0
    return [printed(_moved(event, ids, shift)) for event in events]


def _events(path: Path, content: bytes) -> list[tuple[Event, bytes]]:
    """Each event with its bytes.

    Raises:
        ConfigurationError: there is none, or something else among them.
    """
    try:
        events = _documents(content)
    except ValueError as error:
        message = f"{path} is neither JSON nor one JSON document a line"
        raise ConfigurationError(message) from error
    if not events or not all(_is_event(event) for event, _ in events):
        message = f"{path} holds no event, or not only events: each must be an object whose id and type are texts"
        raise ConfigurationError(message)
    return events


def _documents(content: bytes) -> list[tuple[Any, bytes]]:
    try:
        found = json.loads(content)
    except ValueError:
        return [(json.loads(line), line) for line in content.splitlines() if line.strip()]
    return [(element, printed(element)) for element in found] if isinstance(found, list) else [(found, content)]


def _is_event(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("id"), str) and isinstance(found.get("type"), str)


def _moved(event: Event, ids: Ids, shift: int) -> Event:
    """A fresh event that says the same: its own time and its object's creation move, all other times stay."""
    moved = {**_later(event, shift), "id": ids.new("evt")}
    data = event.get("data")
    if isinstance(data, dict) and isinstance(data.get("object"), dict):
        moved["data"] = {**data, "object": _later(data["object"], shift)}
    return moved


def _later(holder: Event, shift: int) -> Event:
    created = holder.get("created")
    return {**holder, "created": created + shift} if isinstance(created, int) else holder
