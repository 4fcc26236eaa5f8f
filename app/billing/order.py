"""Decide what a subscription's row becomes: a pure function of the set of events heard, whatever their order.

Stripe stamps events in whole seconds, so inside one second the *edges* decide: an update goes from the state that its
diff names to the state that it carries, and the trail through all edges of the second ends in the state that stands.
States are compared by hash; no body is parsed here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from app.billing.changes import ENTITLING_STATUSES, SubscriptionChange
from app.outcomes import Outcome, Reason

MAX_EDGES = 64
"""Events of one second that a row decides by; past it the second is undecided until it has passed."""

_KEPT = MAX_EDGES + 1
"""One more is kept, so that a full second can be told from an overflowing one."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One event of a subscription as the rule sees it; `pre` is None where the event carries no diff."""

    event_id: str
    occurred_at: datetime
    pre: bytes | None
    post: bytes
    terminal: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """What one second comes to.

    `watched`: its edges balance over several states, so the end is the start and older events matter. `open`: the
    winner is deterministic, but the events do not prove it.
    """

    winner: Heard
    watched: bool = False
    open: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a row stands: the part of it that decides. `winner` is None for a row that nothing filled yet.

    `events` are those of the winner's second (only terminal ones once one was heard), ordered by id. `base` is the hash
    of the state at the end of the older seconds, None where that is unknown or undecided.
    """

    version: int = 0
    winner: Heard | None = None
    updated_at: datetime | None = None
    base: bytes | None = None
    events: tuple[Heard, ...] = ()
    watched: bool = False
    open: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One event's effect: where the row stands after it, and whether its state columns changed."""

    standing: Standing
    outcome: Outcome
    reason: Reason
    transition: bool


@dataclass(frozen=True, slots=True)
class Milestones:
    """Times that go from None to a value once in a subscription's life, each with one message."""

    created: datetime | None = None
    activated: datetime | None = None
    canceled: datetime | None = None


def heard_of(change: SubscriptionChange) -> Heard:
    """The part of a change that the rule looks at."""
    return Heard(
        event_id=change.event_id,
        occurred_at=change.occurred_at,
        pre=change.pre_hash,
        post=change.post_hash,
        terminal=change.state.terminal,
    )


def needs_history(standing: Standing, event: Heard) -> bool:
    """Whether `hear` wants the older events of the object: the event is older, and of the regime that stands."""
    winner = standing.winner
    return winner is not None and event.occurred_at < winner.occurred_at and event.terminal == winner.terminal


def hear(standing: Standing, event: Heard, older: Iterable[Heard] = ()) -> Step:
    """Let one event have its effect.

    `older` are the events heard before of the same object, looked at only where `needs_history` says so; those of the
    winner's own second and later may be among them.
    """
    winner = standing.winner
    if winner is None:
        return _step(standing, event, _stand(standing, (event,), base=None), Reason.FIRST_HEARD, Reason.FIRST_HEARD)
    if winner.terminal and not event.terminal:
        return _step(standing, event, standing, Reason.ABSORBED, Reason.TERMINAL_STANDS)
    if event.terminal and not winner.terminal:
        return _step(standing, event, _stand(standing, (event,), base=None), Reason.TERMINAL, Reason.TERMINAL)
    if event.occurred_at > winner.occurred_at:
        base = None if standing.open else winner.post
        return _step(standing, event, _stand(standing, (event,), base=base), Reason.NEWER, Reason.NEWER)
    if event.occurred_at == winner.occurred_at:
        events = _with(standing.events, event)
        return _step(standing, event, _stand(standing, events, standing.base), Reason.SETTLED, Reason.TIE_LOST)
    before = [
        heard
        for heard in (*older, event)
        if heard.occurred_at < winner.occurred_at and heard.terminal == winner.terminal
    ]
    base = end_of(before)
    return _step(standing, event, _stand(standing, standing.events, base), Reason.SETTLED, Reason.OLDER)


def end_of(events: Iterable[Heard]) -> bytes | None:
    """The state at the end of several seconds, each settled from the one before; None if the last is undecided."""
    state: bytes | None = None
    unique = {event.event_id: event for event in events}
    for _, second in groupby(sorted(unique.values(), key=_by_time), key=_second):
        settled = settle(tuple(second), state)
        state = None if settled.open else settled.winner.post
    return state


def settle(events: Sequence[Heard], start: bytes | None) -> Settled:
    """Find the state in which one second ends.

    `start` is the state at its beginning, None where that is unknown.
    """
    edges = [event for event in events if event.pre is not None]
    if len(events) > MAX_EDGES:
        return Settled(_last(edges or events), open=True)
    if not edges:
        return Settled(_last(events), open=len({event.post for event in events}) > 1)
    moves = Counter((event.pre, event.post) for event in edges if event.pre != event.post)
    places = {event.post for event in edges} | {place for place, _ in moves}
    if not moves:
        return Settled(_last(edges), open=len(places) > 1)

    ending = _ending(moves, places) or _ending(Counter(moves.keys()), places)
    if ending is None:
        return Settled(_last(edges), open=True)
    watched = ending is _THE_START
    end = start if watched else ending
    arriving = [event for event in edges if event.post == end]
    if not arriving:
        return Settled(_last(edges), watched=watched, open=True)
    repeated = any(count > 1 for count in moves.values())
    return Settled(_last(arriving), watched=watched, open=repeated and _has_cycle(moves))


def milestones_after(before: Milestones, change: SubscriptionChange) -> Milestones:
    """The milestones once `change` is heard too: each the least time that any event gives it, so order-free."""
    state = change.state
    ended = state.ended_at or state.canceled_at or change.occurred_at
    return Milestones(
        created=_least(before.created, change.created_at or change.occurred_at),
        activated=_least(before.activated, change.occurred_at if state.status in ENTITLING_STATUSES else None),
        canceled=_least(before.canceled, ended if state.status == "canceled" else None),
    )


_THE_START = b"the start"
"""Stands for "the trail ends where it began"; no state has a hash of nine bytes."""


def _ending(moves: Mapping[tuple[bytes | None, bytes], int], places: set[bytes | None]) -> bytes | None:
    """Where a trail over every move exactly once ends; `_THE_START` for a closed one, None if there is no trail."""
    surplus: Counter[bytes | None] = Counter()
    for (pre, post), count in moves.items():
        surplus[post] += count
        surplus[pre] -= count
    uneven = {place: count for place, count in surplus.items() if count}
    if not _connected(moves, places):
        return None
    if not uneven:
        return _THE_START
    if sorted(uneven.values()) != [-1, 1]:
        return None
    return next(place for place, count in uneven.items() if count == 1)


def _connected(moves: Iterable[tuple[bytes | None, bytes]], places: set[bytes | None]) -> bool:
    """Whether all places hang together, the moves taken as ways in both directions."""
    neighbours: dict[bytes | None, set[bytes | None]] = {place: set() for place in places}
    for pre, post in moves:
        neighbours[pre].add(post)
        neighbours[post].add(pre)
    reached: set[bytes | None] = set()
    frontier = {next(iter(places))}
    while frontier:
        reached |= frontier
        frontier = {near for place in frontier for near in neighbours[place]} - reached
    return reached == places


def _has_cycle(moves: Iterable[tuple[bytes | None, bytes]]) -> bool:
    """Whether some state can be left and come back to: take away what nothing leads to until nothing more goes."""
    left = set(moves)
    while left:
        entered = {post for _, post in left}
        staying = {move for move in left if move[0] in entered}
        if staying == left:
            return True
        left = staying
    return False


def _stand(standing: Standing, events: tuple[Heard, ...], base: bytes | None) -> Standing:
    settled = settle(events, base)
    return replace(
        standing,
        winner=settled.winner,
        base=base,
        events=tuple(sorted(sorted(events, key=_edges_last)[-_KEPT:], key=_by_id)),
        watched=settled.watched,
        open=settled.open,
    )


def _step(before: Standing, event: Heard, after: Standing, moved: Reason, stayed: Reason) -> Step:
    """Name what happened: applied means that a state column or `updated_at` changed."""
    transition = before.winner is None or after.winner is None or before.winner.post != after.winner.post
    later = before.updated_at is None or event.occurred_at > before.updated_at
    after = replace(
        after,
        version=before.version + transition,
        updated_at=event.occurred_at if later else before.updated_at,
    )
    applied = transition or later
    return Step(
        standing=after,
        outcome=Outcome.APPLIED if applied else Outcome.STALE,
        reason=moved if applied else stayed,
        transition=transition,
    )


def _with(events: tuple[Heard, ...], event: Heard) -> tuple[Heard, ...]:
    return (*(known for known in events if known.event_id != event.event_id), event)


def _last(events: Iterable[Heard]) -> Heard:
    return max(events, key=_by_id)


def _by_id(event: Heard) -> str:
    return event.event_id


def _edges_last(event: Heard) -> tuple[bool, str]:
    return event.pre is not None, event.event_id


def _second(event: Heard) -> datetime:
    return event.occurred_at


def _by_time(event: Heard) -> tuple[datetime, str]:
    return event.occurred_at, event.event_id


def _least(known: datetime | None, new: datetime | None) -> datetime | None:
    if known is None or new is None:
        return known or new
    return min(known, new)
