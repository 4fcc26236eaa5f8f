"""The rows and the milestone messages are a function of the set of events: every permutation gives the same."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import Any

import httpx
import pytest

from app.db.engine import Timeouts
from tests.events import delivery, life, subscription
from tests.service import Rows, Served, post, process

Event = dict[str, Any]
TIMEOUTS = Timeouts.within(30)


def chain(*states: str, at: int = 10, first: int = 1) -> list[Event]:
    """Updates inside one second, each from the state before it; their ids fall, so that no id tells the order."""
    pairs = pairwise(states)
    return [
        subscription(f"evt_{90 - number}", after, before=before, at=at)
        for number, (before, after) in enumerate(pairs, start=first)
    ]


BEFORE = subscription("evt_0", "active", at=3, before="incomplete")
CREATED = subscription("evt_00", "active", kind="created", at=1)
BYSTANDER = subscription("evt_9", "past_due", at=10, kind="trial_will_end")
A, B, C, D = "active", "past_due", "unpaid", "paused"

SETS: dict[str, list[Event]] = {
    "a life of six": life(),
    "a chain of three": chain(A, B, C, D),
    "a chain of four": chain(A, B, C, D, "trialing"),
    "there and back, with a row before": [BEFORE, *chain(A, B, A)],
    "there and back, with nothing before": chain(A, B, A),
    "a circle of three, with a row before": [BEFORE, *chain(A, B, C, A)],
    "a circle of three, with nothing before": chain(A, B, C, A),
    "a circle, a bystander and a row before": [BEFORE, *chain(A, B, C, A), BYSTANDER],
    "a chain and a bystander": [*chain(A, B, C), BYSTANDER],
    "a circle after a circle, older seconds last": [
        CREATED,
        *chain(A, B, A, at=5, first=1),
        *chain(A, C, A, at=10, first=3),
    ],
    "the creation inside the second": [
        subscription("evt_5", A, kind="created", at=10),
        *chain(A, B, A),
    ],
    "two events for one change": [*chain(A, B), subscription("evt_8", B, before=A, at=10), BEFORE],
    "a late update after the end": [
        CREATED,
        subscription("evt_6", "canceled", kind="deleted", at=8),
        subscription("evt_7", "active", before=B, at=8),
        subscription("evt_8", "past_due", before=A, at=12),
    ],
    "two bystanders that differ": [BYSTANDER, subscription("evt_8", "unpaid", at=10, kind="paused")],
}

DECIDED = {
    "a life of six": "canceled",
    "a chain of three": D,
    "a chain of four": "trialing",
    "there and back, with a row before": A,
    "a circle of three, with a row before": A,
    "a circle, a bystander and a row before": A,
    "a chain and a bystander": C,
    "a circle after a circle, older seconds last": A,
    "the creation inside the second": A,
    "two events for one change": B,
    "a late update after the end": "canceled",
}


def in_every_order(events: Sequence[Event]) -> list[list[Event]]:
    """Every order of the events, each in an account of its own, so that ids may be the same."""
    return [
        [{**event, "account": f"acct_{number}"} for event in order] for number, order in enumerate(permutations(events))
    ]


def cut(orders: Sequence[Sequence[Event]], seed: int | None) -> Iterator[list[Event]]:
    """Batches over all accounts at once: one event of each account, or random runs of each."""
    rng = random.Random(seed)
    left = [list(order) for order in orders]
    while any(left):
        batch: list[Event] = []
        for order in left:
            size = 1 if seed is None else rng.randint(0, len(order))
            batch += order[:size]
            del order[:size]
        yield from (batch[start : start + 128] for start in range(0, len(batch), 128))


async def assert_all_the_same(rows: Rows, expected_status: str | None) -> None:
    found = await rows.subscriptions(leaving_out=["namespace"])
    distinct = {repr(sorted(row.items())) for row in found}
    assert len(distinct) == 1, "\n".join(sorted(distinct)[:3])
    if expected_status is not None:
        assert found[0]["status"] == expected_status
        assert not found[0]["open"]
    else:
        assert found[0]["open"]
    messages = await rows.all(
        "SELECT split_part(subject, '/', 2) AS namespace, array_agg(type::text ORDER BY type) AS types"
        " FROM outbox WHERE type <> 'subscription.updated' GROUP BY 1"
    )
    assert len(messages) == len(found)
    assert len({tuple(row["types"]) for row in messages}) == 1
    assert await rows.one("SELECT count(DISTINCT message_id) = count(*) FROM outbox")


@pytest.mark.parametrize("seed", [None, 1, 2], ids=["one by one", "batched", "batched otherwise"])
@pytest.mark.parametrize("name", SETS)
async def test_every_order_gives_the_same_row_and_milestones(
    served: Served, rows: Rows, name: str, seed: int | None
) -> None:
    receive = served.service.receiver.receive
    for batch in cut(in_every_order(SETS[name]), seed):
        await receive([delivery(event) for event in batch], TIMEOUTS)
    await assert_all_the_same(rows, DECIDED.get(name))


@pytest.mark.parametrize("name", ["a life of six", "a circle after a circle, older seconds last"])
async def test_every_order_over_two_processes_gives_the_same(database_url: str, rows: Rows, name: str) -> None:
    orders = in_every_order(SETS[name])

    async def play(client: httpx.AsyncClient, order: list[Event], urls: list[str]) -> None:
        first, second = order[:2], order[2:]
        for part in (first, second):
            answers = await asyncio.gather(
                *(post(client, event, f"{urls[place % 2]}/webhooks/stripe") for place, event in enumerate(part))
            )
            assert {answer.status_code for answer in answers} == {200}

    limit = asyncio.Semaphore(32)
    async with process(database_url) as left, process(database_url) as right, httpx.AsyncClient(timeout=30) as client:

        async def one(order: list[Event]) -> None:
            async with limit:
                await play(client, order, [left.url, right.url])

        await asyncio.gather(*(one(order) for order in orders))
    await assert_all_the_same(rows, DECIDED[name])
