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

    With `as_is` a file that holds one event is sent byte for byte. Otherwise every event gets a fresh id, and all are
    moved in time so that the latest happened just now; the distances between them stay.

    Raises:
        ConfigurationError: the file cannot be read or holds no event.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise ConfigurationError(message) from error
    events = _events(path, content)
    if as_is:
        return [content] if len(events) == 1 else [printed(event) for event in events]
    ids = Ids(rng)
    stamps = [event["created"] for event in events if isinstance(event.get("created"), int)]
    shift = int(now.timestamp()) - rng.randrange(RECENT_SECONDS) - max(stamps) if stamps else 0
    return [printed(_moved(event, ids, shift)) for event in events]


def _events(path: Path, content: bytes) -> list[Event]:
    try:
        found = json.loads(content)
    except ValueError:
        try:
            found = [json.loads(line) for line in content.splitlines() if line.strip()]
        except ValueError as error:
            message = f"{path} is neither JSON nor one JSON document a line"
            raise ConfigurationError(message) from error
    events = found if isinstance(found, list) else [found]
    if not events or not all(isinstance(event, dict) and "type" in event and "id" in event for event in events):
        message = f"{path} holds no event: each must be an object with an id and a type"
        raise ConfigurationError(message)
    return events


def _moved(event: Event, ids: Ids, shift: int) -> Event:
    """A fresh event that says the same; times inside its object stay, only the event's own moves."""
    moved: dict[str, Any] = {**event, "id": ids.new("evt")}
    if isinstance(event.get("created"), int):
        moved["created"] = event["created"] + shift
    return moved
