"""Payloads that other projects published, kept beside the checkout; a test that needs them skips where they are not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TIMELINES = "stripe/derived-from-openapi-fixtures3"


def payload(path: str) -> bytes:
    """The bytes of one file under the data folder."""
    if not DATA.is_dir():
        pytest.skip(f"the payload {path} is not here: there is no ../shared/data beside the checkout")
    return (DATA / path).read_bytes()


def timeline(path: str) -> dict[str, Any]:
    """One event of the Stripe timelines, decoded."""
    event: dict[str, Any] = json.loads(payload(f"{TIMELINES}/{path}"))
    return event


def stripe_events() -> Iterator[str]:
    """The path of every whole event of Stripe, snapshot or thin; objects and fragments are left out."""
    for path in sorted((DATA / "stripe").rglob("*.json")):
        document = json.loads(path.read_bytes())
        if isinstance(document, dict) and document.get("object") in ("event", "v2.core.event"):
            yield path.relative_to(DATA).as_posix()


def stripe_timeline(folder: str) -> list[str]:
    """The paths of one timeline's events, in its order, for `timeline`."""
    root = DATA / TIMELINES
    return [path.relative_to(root).as_posix() for path in sorted((root / folder).rglob("*.json"))]
