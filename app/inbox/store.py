"""The ledger and the inbox: claim deliveries, and record what was decided about them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import orjson

from app.billing.changes import SubscriptionChange
from app.db.engine import Connection, Row
from app.outcomes import Outcome, Reason
from app.providers.base import FOREVER, Delivery

_CLAIM = """
WITH floor AS MATERIALIZED (SELECT week FROM ledger_floor)
INSERT INTO processed_events AS known
  (namespace, event_id, week, type, occurred_at, received_at, api_version, payload_hash, outcome)
SELECT claimed.*, 'applied'
FROM unnest(
    $1::text[], $2::text[], $3::date[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::text[], $8::bytea[])
  AS claimed (namespace, event_id, week, type, occurred_at, received_at, api_version, payload_hash)
  CROSS JOIN floor
WHERE claimed.week >= floor.week OR claimed.week = $9
ORDER BY claimed.namespace, claimed.event_id
ON CONFLICT (namespace, event_id, week) DO UPDATE SET
  duplicates = known.duplicates
    + CASE WHEN known.outcome = 'parked' OR known.received_at = excluded.received_at THEN 0 ELSE 1 END,
  mismatches = known.mismatches
    + CASE WHEN known.api_version IS NOT DISTINCT FROM excluded.api_version
            AND known.payload_hash <> excluded.payload_hash THEN 1 ELSE 0 END,
  last_seen_at = greatest(known.last_seen_at, excluded.received_at)
RETURNING namespace, event_id, outcome, received_at, last_seen_at, api_version, payload_hash
"""

_BELOW_FLOOR = """
UPDATE processed_events AS known
SET duplicates = known.duplicates + 1, last_seen_at = greatest(known.last_seen_at, again.received_at)
FROM unnest($1::text[], $2::text[], $3::date[], $4::timestamptz[]) AS again (namespace, event_id, week, received_at)
WHERE known.namespace = again.namespace AND known.event_id = again.event_id AND known.week = again.week
RETURNING known.namespace, known.event_id
"""

_TWINS = """
SELECT known.namespace, known.event_id
FROM unnest($1::text[], $2::text[], $3::date[], $4::date[]) AS thin (namespace, event_id, earliest, latest)
JOIN processed_events AS known
  ON known.namespace = thin.namespace AND known.event_id = thin.event_id
  AND (known.week BETWEEN thin.earliest AND thin.latest OR known.week = $5)
"""

_RECORD = """
INSERT INTO inbox
  (arrived_on, namespace, event_id, source, type, object_id, occurred_at, received_at, api_version, secret_label,
   headers, body, pre_hash, post_hash, terminal, outcome, reason, decision)
SELECT * FROM unnest(
  $1::date[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::timestamptz[], $8::timestamptz[],
  $9::text[], $10::text[], $11::jsonb[], $12::bytea[], $13::bytea[], $14::bytea[], $15::boolean[], $16::text[],
  $17::text[], $18::jsonb[])
ON CONFLICT (arrived_on, namespace, event_id) DO UPDATE SET
  attempts = inbox.attempts + 1, source = excluded.source, api_version = excluded.api_version,
  secret_label = excluded.secret_label, headers = excluded.headers, body = excluded.body,
  pre_hash = excluded.pre_hash, post_hash = excluded.post_hash, terminal = excluded.terminal,
  outcome = excluded.outcome, reason = excluded.reason, decision = excluded.decision
"""

_OTHERS = """
UPDATE processed_events AS known
SET outcome = coalesce(other.outcome, known.outcome),
    duplicates = known.duplicates + other.copies,
    last_seen_at = CASE WHEN other.copies > 0 THEN other.seen ELSE known.last_seen_at END
FROM unnest($1::text[], $2::text[], $3::date[], $4::text[], $5::int[], $6::timestamptz[])
  AS other (namespace, event_id, week, outcome, copies, seen)
WHERE known.namespace = other.namespace AND known.event_id = other.event_id AND known.week = other.week
"""

FARTHEST_AHEAD = timedelta(days=8)
"""An event's own time may be this far ahead of ours; past it no ledger partition is made for it."""


@dataclass(slots=True)
class Claim:
    """One event of a batch, with every delivery of it there; `places` are theirs in the batch, the first one's first.

    `fresh`: this transaction is to give it its effect. `retried`: it was parked before, at `first_received_at`.
    `in_ledger`: it has a ledger row, unlike an event below the floor or too far ahead.
    """

    delivery: Delivery
    places: list[int]
    fresh: bool = False
    retried: bool = False
    in_ledger: bool = True
    mismatch: bool = False
    first_received_at: datetime | None = None
    outcome: Outcome = Outcome.APPLIED
    reason: Reason | None = None
    decision: Mapping[str, Any] | None = None
    change: SubscriptionChange | None = None

    def decide(self, outcome: Outcome, reason: Reason, decision: Mapping[str, Any] | None = None) -> None:
        """Set what became of the event."""
        self.outcome, self.reason, self.decision = outcome, reason, decision

    @property
    def key(self) -> tuple[str, str]:
        """What the ledger tells events apart by; the week follows from the event."""
        return self.delivery.namespace, self.delivery.event_id


@dataclass(slots=True)
class Claims:
    """What `claim` found: every event of the batch, in key order."""

    all: list[Claim] = field(default_factory=list)

    @property
    def fresh(self) -> list[Claim]:
        """The events that this transaction is to decide."""
        return [claim for claim in self.all if claim.fresh]


async def claim(
    connection: Connection, deliveries: Sequence[Delivery], now: datetime, *, again: bool = False
) -> Claims:
    """Claim each event once: the ledger's unique key decides.

    Waits for other transactions that claim the same events. A ledger row that is parked is locked and fresh again.
    With `again` (the answer to these deliveries' COMMIT was lost) a row of the same receipt is their own, and the
    outcome is the one it holds.
    """
    claims = _grouped(deliveries)
    ahead = now + FARTHEST_AHEAD
    asked = []
    for found in claims.all:
        if found.delivery.occurred_at > ahead and found.delivery.week != FOREVER:
            found.fresh, found.in_ledger = True, False
            found.decide(Outcome.PARKED, Reason.TIME_AHEAD)
        else:
            asked.append(found)
    known = {(row["namespace"], row["event_id"]): row for row in await _ask(connection, asked)}
    below = []
    for found in asked:
        row = known.get(found.key)
        if row is None:
            below.append(found)
        else:
            _take(found, row, again=again)
    await _claim_below_floor(connection, below)
    return claims


def _grouped(deliveries: Sequence[Delivery]) -> Claims:
    by_key: dict[tuple[str, str], Claim] = {}
    for place, delivery in enumerate(deliveries):
        claim_ = by_key.setdefault((delivery.namespace, delivery.event_id), Claim(delivery, []))
        claim_.places.append(place)
    return Claims([by_key[key] for key in sorted(by_key)])


async def _ask(connection: Connection, claims: Sequence[Claim]) -> Sequence[Row]:
    if not claims:
        return []
    deliveries = [found.delivery for found in claims]
    return await connection.fetch(
        _CLAIM,
        [delivery.namespace for delivery in deliveries],
        [delivery.event_id for delivery in deliveries],
        [delivery.week for delivery in deliveries],
        [delivery.type for delivery in deliveries],
        [delivery.occurred_at for delivery in deliveries],
        [delivery.received_at for delivery in deliveries],
        [delivery.api_version for delivery in deliveries],
        [delivery.payload_hash for delivery in deliveries],
        FOREVER,
    )


def _take(found: Claim, row: Row, *, again: bool) -> None:
    """Read off a ledger row whose it is: `last_seen_at` is None only on one that this statement inserted."""
    delivery = found.delivery
    found.first_received_at = row["received_at"]
    if row["last_seen_at"] is None:
        found.fresh = True
        return
    found.mismatch = row["api_version"] == delivery.api_version and row["payload_hash"] != delivery.payload_hash
    if again and row["received_at"] == delivery.received_at:
        found.outcome = Outcome(row["outcome"])
    elif row["outcome"] == Outcome.PARKED:
        found.fresh = found.retried = True
    else:
        found.decide(Outcome.DUPLICATE, Reason.SEEN_BEFORE)


async def _claim_below_floor(connection: Connection, claims: Sequence[Claim]) -> None:
    """Below the floor nothing is claimed: what a partition not dropped yet holds is a duplicate, the rest expired."""
    if not claims:
        return
    found = await connection.fetch(
        _BELOW_FLOOR,
        [claim_.delivery.namespace for claim_ in claims],
        [claim_.delivery.event_id for claim_ in claims],
        [claim_.delivery.week for claim_ in claims],
        [claim_.delivery.received_at for claim_ in claims],
    )
    known = {(row["namespace"], row["event_id"]) for row in found}
    for claim_ in claims:
        if claim_.key in known:
            claim_.decide(Outcome.DUPLICATE, Reason.SEEN_BEFORE)
        else:
            claim_.fresh, claim_.in_ledger = True, False
            claim_.decide(Outcome.EXPIRED, Reason.BELOW_FLOOR)


async def known_twins(connection: Connection, thin: Iterable[Claim]) -> set[tuple[str, str]]:
    """Which snapshot events named by thin ones the ledger holds, by namespace and id; waits for no lock.

    A thin event's time is its twin's but for the fraction of a second, so the twin's week is the same or next to it.
    """
    wanted = [claim_.delivery for claim_ in thin]
    if not wanted:
        return set()
    found = await connection.fetch(
        _TWINS,
        [delivery.namespace for delivery in wanted],
        [delivery.twin_id for delivery in wanted],
        [delivery.week - timedelta(days=7) for delivery in wanted],
        [delivery.week + timedelta(days=7) for delivery in wanted],
        FOREVER,
    )
    return {(row["namespace"], row["event_id"]) for row in found}


async def record(connection: Connection, claims: Claims, today: date, oldest: date) -> None:
    """Store the raw bodies of the fresh events with their decisions, and correct the ledger rows that need it.

    An event that was parked keeps its row of the day on which it first came, unless that is before `oldest`. Waits for
    no lock that `claim` has not taken.
    """
    fresh = claims.fresh
    if fresh:
        await connection.execute(_RECORD, *_inbox_columns(fresh, today, oldest))
    others = [
        claim_
        for claim_ in claims.all
        if claim_.in_ledger
        and ((claim_.fresh and (claim_.retried or claim_.outcome != Outcome.APPLIED)) or len(claim_.places) > 1)
    ]
    if others:
        await connection.execute(
            _OTHERS,
            [claim_.delivery.namespace for claim_ in others],
            [claim_.delivery.event_id for claim_ in others],
            [claim_.delivery.week for claim_ in others],
            [claim_.outcome if claim_.fresh else None for claim_ in others],
            [len(claim_.places) - 1 for claim_ in others],
            [claim_.delivery.received_at for claim_ in others],
        )


def _inbox_columns(fresh: Sequence[Claim], today: date, oldest: date) -> list[list[Any]]:
    deliveries = [claim_.delivery for claim_ in fresh]
    changes = [claim_.change for claim_ in fresh]
    return [
        [_day(claim_, today, oldest) for claim_ in fresh],
        [delivery.namespace for delivery in deliveries],
        [delivery.event_id for delivery in deliveries],
        [delivery.source.name for delivery in deliveries],
        [delivery.type for delivery in deliveries],
        [delivery.object_id for delivery in deliveries],
        [delivery.occurred_at for delivery in deliveries],
        [delivery.received_at for delivery in deliveries],
        [delivery.api_version for delivery in deliveries],
        [delivery.secret_label for delivery in deliveries],
        [orjson.dumps(dict(delivery.headers)).decode() for delivery in deliveries],
        [delivery.body for delivery in deliveries],
        [change and change.pre_hash for change in changes],
        [change and change.post_hash for change in changes],
        [change and change.state.terminal for change in changes],
        [claim_.outcome for claim_ in fresh],
        [claim_.reason for claim_ in fresh],
        [None if claim_.decision is None else orjson.dumps(claim_.decision).decode() for claim_ in fresh],
    ]


def _day(claim_: Claim, today: date, oldest: date) -> date:
    if claim_.retried and claim_.first_received_at is not None:
        first = claim_.first_received_at.astimezone(UTC).date()
        return first if first >= oldest else today
    return today
