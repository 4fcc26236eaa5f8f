"""The order rule in pure code: small cases by name, and thousands of random lives in random orders."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.billing.changes import NOTHING, SubscriptionChange, SubscriptionState, state_hash
from app.billing.order import (
    MAX_EDGES,
    Heard,
    Milestones,
    Standing,
    end_of,
    hear,
    milestones_after,
    needs_history,
    settle,
)
from app.outcomes import Outcome, Reason

START = datetime(2026, 1, 1, tzinfo=UTC)


def place(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def edge(event_id: str, way: str, at: int = 0) -> Heard:
    """`A>B` is an update, `>A` the creation, `A` an event without a diff, `A>!B` or `!B` one that ends it."""
    pre, arrow, post = way.rpartition(">")
    before = None if not arrow else (place(pre) if pre else NOTHING)
    return Heard(event_id, START + timedelta(seconds=at), before, place(post.strip("!")), "!" in post)


def edges(*ways: str, at: int = 0) -> list[Heard]:
    return [edge(f"e{number}", way, at) for number, way in enumerate(ways)]


def play(events: Sequence[Heard]) -> Standing:
    standing = Standing()
    heard: list[Heard] = []
    for event in events:
        standing = hear(standing, event, heard if needs_history(standing, event) else ()).standing
        heard.append(event)
    return standing


@pytest.mark.parametrize(
    ("ways", "start", "end", "is_open", "watched"),
    [
        (["A>B"], None, "B", False, False),
        (["A>B", "B>C"], None, "C", False, False),
        ([">A", "A>B", "B>A"], None, "A", False, False),
        (["A>B", "B>A"], "A", "A", False, True),
        (["A>B", "B>A"], "B", "B", False, True),
        (["A>B", "B>A"], None, "A", True, True),
        (["A>B", "B>A"], "C", "A", True, True),
        (["A>B", "A>B"], None, "B", False, False),
        (["A>B", "A>B", "B>C", "B>C"], None, "C", False, False),
        (["A>B", "A>B", "B>A"], None, "B", True, False),
        (["A>B", "A>B", "B>A", "B>A"], "A", "A", True, True),
        (["A>B", "A>B", "A>B", "B>A"], "A", "A", True, True),
        (["A>B", "C>D"], None, "D", True, False),
        (["A>B", "C>D", "D>C"], None, "C", True, False),
        (["A>A"], None, "A", False, False),
        (["A>A", "A>A"], None, "A", False, False),
        (["A>A", "B>B"], None, "B", True, False),
        (["A>B", "C>C"], None, "C", True, False),
        (["A>B", "C"], None, "B", False, False),
        (["C", "C"], None, "C", False, False),
        (["C", "D"], None, "D", True, False),
    ],
)
def test_a_second_comes_to(ways: list[str], start: str | None, end: str, is_open: bool, watched: bool) -> None:
    settled = settle(edges(*ways), place(start) if start else None)
    assert (settled.winner.post, settled.open, settled.watched) == (place(end), is_open, watched)


def test_a_second_with_more_events_than_a_row_keeps_is_open_until_it_has_passed() -> None:
    crowd = [edge(f"e{number:03}", f"{number}>{number + 1}") for number in range(MAX_EDGES + 6)]
    orders = [crowd, crowd[::-1], random.Random(1).sample(crowd, len(crowd))]
    standings = {replace(play(order), version=0) for order in orders}
    assert len(standings) == 1
    (full,) = standings
    assert full.open
    assert full.winner == max(crowd, key=lambda event: event.event_id)
    assert play(crowd[:MAX_EDGES]).open is False
    later = hear(full, edge("x", "Q>R", at=1)).standing
    assert (later.open, later.base) == (False, None)


def test_a_crowd_of_events_without_a_diff_keeps_the_edges_first() -> None:
    crowd = [edge(f"e{number:03}", "A") for number in range(MAX_EDGES + 6)]
    way = edge("a", "A>B")
    assert play([way, *crowd]) == replace(play([*crowd, way]), version=play([way, *crowd]).version)


def test_a_terminal_state_absorbs_what_comes_later_and_tells_so() -> None:
    ended = play([edge("e1", "!X", at=5)])
    later = hear(ended, edge("e2", "A>B", at=9))
    assert (later.outcome, later.reason, later.transition) == (Outcome.APPLIED, Reason.ABSORBED, False)
    assert later.standing.updated_at == START + timedelta(seconds=9)
    earlier = hear(later.standing, edge("e3", "A>B", at=8))
    assert (earlier.outcome, earlier.reason) == (Outcome.STALE, Reason.TERMINAL_STANDS)


def test_an_older_terminal_event_brings_the_end_and_goes_back_to_its_second() -> None:
    step = hear(play([edge("e1", "A>B", at=9)]), edge("e2", "!X", at=5))
    assert (step.outcome, step.reason) == (Outcome.APPLIED, Reason.TERMINAL)
    assert step.standing.winner == edge("e2", "!X", at=5)
    assert step.standing.updated_at == START + timedelta(seconds=9)


def test_an_older_event_settles_an_open_row() -> None:
    circle = edges("A>B", "B>A", at=5)
    undecided = play(circle)
    assert undecided.open
    step = hear(undecided, edge("e9", "X>B", at=1), circle)
    assert (step.outcome, step.reason, step.standing.open) == (Outcome.APPLIED, Reason.SETTLED, False)
    assert step.standing.winner is not None
    assert step.standing.winner.post == place("B")


def test_an_older_event_that_settles_nothing_is_stale() -> None:
    step = hear(play([edge("e1", "A>B", at=9)]), edge("e2", "X>A", at=5))
    assert (step.outcome, step.reason, step.standing.base) == (Outcome.STALE, Reason.OLDER, place("A"))


def test_the_end_of_undecided_seconds_is_unknown() -> None:
    assert end_of([]) is None
    assert end_of(edges("A>B", "B>A")) is None
    assert end_of([*edges("A>B", "B>A"), edge("x", "A>C", at=1)]) == place("C")


def milestones(order: Sequence[SubscriptionChange]) -> Milestones:
    reached = Milestones()
    for change in order:
        reached = milestones_after(reached, change)
    return reached


def test_milestones_are_the_same_in_every_order() -> None:
    ended = START + timedelta(days=3)
    states = [
        SubscriptionState("incomplete"),
        SubscriptionState("trialing"),
        SubscriptionState("active"),
        SubscriptionState("canceled", ended_at=ended),
        SubscriptionState("canceled"),
    ]
    changes = [
        SubscriptionChange(
            "ns", "sub", f"e{number}", START + timedelta(days=number), state, None, state_hash(state), START
        )
        for number, state in enumerate(states)
    ]
    assert {milestones(order) for order in permutations(changes)} == {
        Milestones(START, START + timedelta(days=1), ended)
    }
    assert milestones(changes[:1]) == Milestones(START, None, None)


@st.composite
def lives(draw: st.DrawFn) -> list[Heard]:
    """A true history: a walk through states over a few seconds, with bystanders, twins, and perhaps an end."""
    state, second, ended = "", 0, False
    history: list[Heard] = []
    for number in range(draw(st.integers(1, 8))):
        second += draw(st.sampled_from([0, 0, 0, 1]))
        event_id = f"e{draw(st.integers(0, 999)):03}-{number}"
        kind = draw(st.sampled_from(["move"] * 6 + ["bystander", "end"]))
        if not state or (kind == "move" and not ended):
            after = draw(st.sampled_from("ABCD"))
            history.append(edge(event_id, f"{state}>{after}", second))
            if draw(st.integers(0, 7)) == 0:
                history.append(edge(f"{event_id}-twin", f"{state}>{after}", second))
            state = after
        elif kind == "end":
            history.append(edge(event_id, "!X", second))
            state, ended = "X", True
        else:
            history.append(edge(event_id, "!X" if ended else state, second))
    return history


@settings(max_examples=3000, deadline=None)
@given(lives(), st.randoms(use_true_random=False))
def test_any_order_of_any_life_gives_the_same_row_and_a_decided_one_is_right(
    history: list[Heard], rng: random.Random
) -> None:
    told = replace(play(history), version=0)
    for _ in range(4):
        assert replace(play(rng.sample(history, len(history))), version=0) == told
    if not told.open:
        assert told.winner is not None
        assert told.winner.post == history[-1].post
        assert told.updated_at == history[-1].occurred_at
