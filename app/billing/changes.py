"""What an event means for one of our rows, in our words: the values that providers make and `order` decides on."""

import hashlib
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import orjson

NOTHING = b"\x00" * 16
"""The hash of the state before an object exists: where the edge of a `created` event starts."""

TERMINAL_STATUSES = frozenset({"canceled", "incomplete_expired"})
"""Statuses that a subscription never leaves (Stripe: the Subscription object, `status`)."""

ENTITLING_STATUSES = frozenset({"trialing", "active"})
"""Statuses whose first hearing is the milestone `activated`."""


@dataclass(frozen=True, slots=True)
class SubscriptionItem:
    """One line of a subscription; `unit_amount` in minor units, None for tiered or decimal prices."""

    id: str | None
    plan: str | None
    product: str | None
    quantity: int | None
    unit_amount: int | None
    currency: str | None
    interval: str | None
    interval_count: int | None
    current_period_end: datetime | None


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """The state columns of a subscription: what a row says after an event.

    `plan`, `product`, `quantity`, `unit_amount`, `currency`, `interval` and `interval_count` are those of the first
    item; `current_period_end` is the latest of all items. Amounts are in minor units of `currency`.
    """

    status: str
    customer: str | None = None
    plan: str | None = None
    product: str | None = None
    quantity: int | None = None
    unit_amount: int | None = None
    currency: str | None = None
    interval: str | None = None
    interval_count: int | None = None
    current_period_end: datetime | None = None
    trial_end: datetime | None = None
    cancel_at: datetime | None = None
    cancel_at_period_end: bool = False
    canceled_at: datetime | None = None
    ended_at: datetime | None = None
    pause_behavior: str | None = None
    items: tuple[SubscriptionItem, ...] = ()

    @property
    def terminal(self) -> bool:
        """Whether no other status can follow."""
        return self.status in TERMINAL_STATUSES


_STATE_COLUMNS = tuple(column.name for column in fields(SubscriptionState))
_ITEM_COLUMNS = tuple(column.name for column in fields(SubscriptionItem))


def columns_of(state: SubscriptionState) -> dict[str, Any]:
    """The state's columns by name, `items` as they are (a deep copy is what makes `asdict` slow)."""
    return {name: getattr(state, name) for name in _STATE_COLUMNS}


def state_hash(state: SubscriptionState) -> bytes:
    """16 bytes that are equal exactly where all columns are; nulls are dropped, so a column added later breaks none."""
    columns = _without_nulls(state, _STATE_COLUMNS)
    columns["items"] = [_without_nulls(item, _ITEM_COLUMNS) for item in state.items]
    return hashlib.blake2b(orjson.dumps(columns, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _without_nulls(holder: SubscriptionState | SubscriptionItem, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(holder, name)) is not None}


@dataclass(frozen=True, slots=True)
class SubscriptionChange:
    """One event's word on one subscription.

    `pre_hash` is the hash of the state that the event's diff says it came from: `NOTHING` for the creation, None
    where the event carries no diff (it is then no edge). `created_at` is the object's own creation time.
    """

    namespace: str
    external_id: str
    event_id: str
    occurred_at: datetime
    state: SubscriptionState
    pre_hash: bytes | None
    post_hash: bytes
    created_at: datetime | None = None

    @property
    def subject(self) -> str:
        """What messages about this row are about, and the anchor of its milestones."""
        return f"subscription/{self.namespace}/{self.external_id}"
