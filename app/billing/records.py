"""A subscription's row as the table holds it: which columns are written, and the way there and back."""

from dataclasses import fields
from datetime import datetime
from typing import Any

from app.billing.changes import TERMINAL_STATUSES, SubscriptionItem, SubscriptionState, columns_of
from app.billing.order import Heard, Milestones, Standing
from app.billing.rows import SubscriptionRow
from app.db.engine import Row

_COLUMN_TYPES = {
    "customer": "text",
    "status": "text",
    "plan": "text",
    "product": "text",
    "quantity": "bigint",
    "unit_amount": "bigint",
    "currency": "text",
    "interval": "text",
    "interval_count": "bigint",
    "current_period_end": "timestamptz",
    "trial_end": "timestamptz",
    "cancel_at": "timestamptz",
    "cancel_at_period_end": "boolean",
    "canceled_at": "timestamptz",
    "ended_at": "timestamptz",
    "pause_behavior": "text",
    "items": "jsonb",
    "created_at": "timestamptz",
    "activated_at": "timestamptz",
    "canceled_since": "timestamptz",
    "updated_at": "timestamptz",
    "state_at": "timestamptz",
    "state_event_id": "text",
    "state_hash": "bytea",
    "base": "bytea",
    "edges": "jsonb",
    "watched": "boolean",
    "open": "boolean",
    "version": "bigint",
}

COLUMNS = tuple(f'"{name}"' for name in _COLUMN_TYPES)
"""The columns that a write sets, quoted for SQL."""

TYPES = ", ".join(f'"{name}" {type_}' for name, type_ in _COLUMN_TYPES.items())
"""The same as a column definition list."""

_STATE_FIELDS = tuple(field.name for field in fields(SubscriptionState) if field.name != "items")


def read_row(record: Row) -> SubscriptionRow:
    """The row that a record of `subscriptions` holds; version 0 is a row that nothing filled yet."""
    return SubscriptionRow(
        id=record["id"],
        namespace=record["namespace"],
        external_id=record["external_id"],
        tenant=record["tenant"],
        standing=_standing(record),
        state=_state(record) if record["version"] else None,
        milestones=Milestones(record["created_at"], record["activated_at"], record["canceled_since"]),
    )


def write_row(row: SubscriptionRow, read_version: int) -> dict[str, Any]:
    """The values of a filled row, as `json_to_recordset` reads them back by `TYPES`."""
    standing, state = row.standing, row.state
    if state is None or standing.winner is None:
        message = f"{row.subject} has no state to write"
        raise ValueError(message)
    return {
        **columns_of(state),
        "id": row.id,
        "read_version": read_version,
        "created_at": row.milestones.created,
        "activated_at": row.milestones.activated,
        "canceled_since": row.milestones.canceled,
        "updated_at": standing.updated_at,
        "state_at": standing.winner.occurred_at,
        "state_event_id": standing.winner.event_id,
        "state_hash": _bytea(standing.winner.post),
        "base": _bytea(standing.base),
        "edges": [[event.event_id, _hex(event.pre), event.post.hex()] for event in standing.events],
        "watched": standing.watched,
        "open": standing.open,
        "version": standing.version,
    }


def _standing(record: Row) -> Standing:
    if not record["version"]:
        return Standing()
    second = record["state_at"]
    terminal = record["status"] in TERMINAL_STATUSES
    return Standing(
        version=record["version"],
        winner=Heard(record["state_event_id"], second, None, record["state_hash"], terminal),
        updated_at=record["updated_at"],
        base=record["base"],
        events=tuple(
            Heard(event_id, second, None if pre is None else bytes.fromhex(pre), bytes.fromhex(post), terminal)
            for event_id, pre, post in record["edges"]
        ),
        watched=record["watched"],
        open=record["open"],
    )


def _state(record: Row) -> SubscriptionState:
    items = tuple(SubscriptionItem(**_with_time(item)) for item in record["items"])
    return SubscriptionState(**{name: record[name] for name in _STATE_FIELDS}, items=items)


def _with_time(item: dict[str, Any]) -> dict[str, Any]:
    end = item["current_period_end"]
    return {**item, "current_period_end": None if end is None else datetime.fromisoformat(end)}


def _bytea(value: bytes | None) -> str | None:
    return None if value is None else f"\\x{value.hex()}"


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()
