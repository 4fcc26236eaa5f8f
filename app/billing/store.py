"""Apply changes to subscriptions: make missing rows, lock in key order, decide, write with the guard."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import orjson

from app.billing import records
from app.billing.changes import SubscriptionChange, SubscriptionState
from app.billing.order import Heard, Step, hear, heard_of, needs_history
from app.billing.rows import Decision, SubscriptionRow, advance
from app.db.engine import Connection
from app.db.faults import Conflict

Key: TypeAlias = tuple[str, str]
"""Namespace and external id: the order in which rows are locked."""

Recall: TypeAlias = Callable[[str, bytes], SubscriptionState]
"""Reads the state after an event from its stored source name and body."""

OLDER_LIMIT = 1000
"""Older events of one object that are read to settle it; the oldest second of a longer life is left out."""

_MAKE = """
INSERT INTO subscriptions (namespace, external_id, tenant)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
ON CONFLICT (namespace, external_id) DO NOTHING
"""

_LOCK = """
SELECT s.* FROM subscriptions s
JOIN unnest($1::text[], $2::text[]) AS wanted (namespace, external_id) USING (namespace, external_id)
ORDER BY s.namespace, s.external_id
FOR UPDATE OF s
"""

_OLDER = """
SELECT wanted.namespace, wanted.object_id, older.*
FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS wanted (namespace, object_id, before)
CROSS JOIN LATERAL (
  SELECT event_id, occurred_at, pre_hash, post_hash, terminal
  FROM inbox
  WHERE inbox.namespace = wanted.namespace AND inbox.object_id = wanted.object_id
    AND inbox.occurred_at < wanted.before
    AND inbox.outcome IN ('applied', 'stale') AND inbox.post_hash IS NOT NULL
  ORDER BY occurred_at DESC
  LIMIT $4
) AS older
"""

_BODIES = """
SELECT wanted.namespace, wanted.object_id, wanted.event_id, stored.source, stored.body
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[]) AS wanted (namespace, object_id, at, event_id)
CROSS JOIN LATERAL (
  SELECT source, body FROM inbox
  WHERE inbox.namespace = wanted.namespace AND inbox.object_id = wanted.object_id
    AND inbox.occurred_at = wanted.at AND inbox.event_id = wanted.event_id
  ORDER BY arrived_on DESC
  LIMIT 1
) AS stored
"""

_WRITE = f"""
UPDATE subscriptions s
SET {", ".join(f"{name} = written.{name}" for name in records.COLUMNS)}, recorded_at = now()
FROM json_to_recordset($1::json) AS written (id bigint, read_version bigint, {records.TYPES})
WHERE s.id = written.id
  AND s.version = written.read_version
  AND (s.updated_at IS NULL OR s.updated_at <= written.updated_at)
RETURNING s.id
"""  # noqa: S608  (the names are constants of `records`)


class RowMoved(Conflict):
    """A locked row was written by another transaction: the guard refused, nothing of this transaction stands."""


@dataclass(slots=True)
class _Life:
    """One row while a transaction's changes are applied to it; `changes` are in the order of their seconds."""

    row: SubscriptionRow
    changes: list[SubscriptionChange]
    older: list[Heard] = field(default_factory=list)
    steps: list[Step | Exception] = field(default_factory=list)

    def hear_all(self) -> None:
        """Take every change's step; one whose pure code raises leaves the row where it stood."""
        standing = self.row.standing
        for change in self.changes:
            event = heard_of(change)
            try:
                step = hear(standing, event, self.older)
            except Exception as error:  # noqa: BLE001  (poison stays alone: its own delivery is parked)
                self.steps.append(error)
                continue
            self.steps.append(step)
            self.older.append(event)
            standing = step.standing

    def states(self) -> dict[bytes, SubscriptionState]:
        """The states at hand, by their hash."""
        known = {change.post_hash: change.state for change in self.changes}
        if self.row.state is not None and self.row.standing.winner is not None:
            known[self.row.standing.winner.post] = self.row.state
        return known

    def winners(self) -> Iterable[Heard]:
        """The events whose states the row passes through."""
        for step in self.steps:
            if isinstance(step, Step) and step.standing.winner is not None:
                yield step.standing.winner


class StateGone(LookupError):
    """The event that decides a row is not in the inbox any more, so its state cannot be read."""


async def apply(
    connection: Connection, changes: Sequence[SubscriptionChange], *, tenants: Mapping[str, str], recall: Recall
) -> dict[int, Decision | Exception]:
    """Apply changes to their rows; the answer holds each one's decision, or what pure code raised, by its place.

    `tenants` names the tenant of a namespace's new rows. Waits for the locks of the rows, in key order. Rows are read,
    and the inbox after them, under those locks; each is written once, whatever the number of its changes.

    Raises:
        RowMoved: the guard refused a write.
    """
    if not changes:
        return {}
    lives = await _lock(connection, changes, tenants)
    await _read_older(connection, lives)
    for life in lives:
        life.hear_all()
    recalled = await _recall_states(connection, lives, recall)
    places = {id(change): place for place, change in enumerate(changes)}
    decisions: dict[int, Decision | Exception] = {}
    written: list[dict[str, Any]] = []
    for life in lives:
        after = life.row
        for change, outcome in _advance_all(life, recalled):
            decisions[places[id(change)]] = outcome if isinstance(outcome, Exception) else outcome[1]
            after = after if isinstance(outcome, Exception) else outcome[0]
        if after is not life.row:
            written.append(records.write_row(after, life.row.standing.version))
    await _write(connection, written)
    await _delete_empty(connection, lives, written)
    return decisions


async def _lock(
    connection: Connection, changes: Sequence[SubscriptionChange], tenants: Mapping[str, str]
) -> list[_Life]:
    """Make the rows that are missing, then lock all in key order; a row to decide on is always a locked one."""
    by_key: dict[Key, list[SubscriptionChange]] = {}
    for change in changes:
        by_key.setdefault((change.namespace, change.external_id), []).append(change)
    keys = sorted(by_key)
    namespaces, external_ids = [key[0] for key in keys], [key[1] for key in keys]
    await connection.execute(_MAKE, namespaces, external_ids, [tenants[namespace] for namespace in namespaces])
    rows = [records.read_row(record) for record in await connection.fetch(_LOCK, namespaces, external_ids)]
    return [
        _Life(row, sorted(by_key[row.namespace, row.external_id], key=lambda change: change.occurred_at))
        for row in rows
    ]


async def _read_older(connection: Connection, lives: Iterable[_Life]) -> None:
    """Read the older events of the rows that an older event comes to; of a longer life, the newest `OLDER_LIMIT`."""
    wanted: dict[Key, tuple[_Life, datetime]] = {}
    for life in lives:
        winner = life.row.standing.winner
        if winner and any(needs_history(life.row.standing, heard_of(change)) for change in life.changes):
            wanted[life.row.namespace, life.row.external_id] = life, winner.occurred_at
    if not wanted:
        return
    found = await connection.fetch(
        _OLDER,
        [namespace for namespace, _ in wanted],
        [external_id for _, external_id in wanted],
        [before for _, before in wanted.values()],
        OLDER_LIMIT,
    )
    for record in found:
        life, _ = wanted[record["namespace"], record["object_id"]]
        life.older.append(
            Heard(
                record["event_id"],
                record["occurred_at"],
                record["pre_hash"],
                record["post_hash"],
                record["terminal"],
            )
        )
    for life, _ in wanted.values():
        if len(life.older) == OLDER_LIMIT:
            oldest = min(event.occurred_at for event in life.older)
            life.older = [event for event in life.older if event.occurred_at > oldest]


async def _recall_states(
    connection: Connection, lives: Iterable[_Life], recall: Recall
) -> Mapping[tuple[str, str], SubscriptionState]:
    """Read the bodies of the events that decide a row and are neither in it nor in this batch, by namespace and id."""
    wanted: dict[tuple[str, str], tuple[str, datetime]] = {}
    for life in lives:
        known = life.states()
        for winner in life.winners():
            if winner.post not in known:
                wanted[life.row.namespace, winner.event_id] = life.row.external_id, winner.occurred_at
    if not wanted:
        return {}
    found = await connection.fetch(
        _BODIES,
        [namespace for namespace, _ in wanted],
        [external_id for external_id, _ in wanted.values()],
        [at for _, at in wanted.values()],
        [event_id for _, event_id in wanted],
    )
    states: dict[tuple[str, str], SubscriptionState] = {}
    for record in found:
        with suppress(Exception):  # what cannot be read any more is missing: its row's events are parked, alone
            states[record["namespace"], record["event_id"]] = recall(record["source"], record["body"])
    return states


def _advance_all(
    life: _Life, recalled: Mapping[tuple[str, str], SubscriptionState]
) -> Iterable[tuple[SubscriptionChange, tuple[SubscriptionRow, Decision] | Exception]]:
    known = life.states()
    row = life.row
    for change, step in zip(life.changes, life.steps, strict=True):
        if isinstance(step, Exception) or step.standing.winner is None:
            yield change, step if isinstance(step, Exception) else StateGone(change.event_id)
            continue
        winner = step.standing.winner
        state = known.get(winner.post) or recalled.get((row.namespace, winner.event_id))
        if state is None:
            yield change, StateGone(winner.event_id)
            continue
        known[winner.post] = state
        row, decision = advance(row, change, step, state)
        yield change, (row, decision)


async def _write(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows behind the guard: the version that was read, and `updated_at` that never falls."""
    if not rows:
        return
    done = await connection.fetch(_WRITE, orjson.dumps(rows).decode())
    if len(done) != len(rows):
        message = f"{len(rows) - len(done)} of {len(rows)} subscriptions were moved by somebody else"
        raise RowMoved(message)


async def _delete_empty(connection: Connection, lives: Iterable[_Life], written: Iterable[Mapping[str, Any]]) -> None:
    """Take away rows that were made here and that nothing filled."""
    filled = {row["id"] for row in written}
    empty = [life.row.id for life in lives if not life.row.standing.version and life.row.id not in filled]
    if empty:
        await connection.execute("DELETE FROM subscriptions WHERE id = ANY($1::bigint[]) AND version = 0", empty)
