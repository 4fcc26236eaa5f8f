"""Deciding on a row when the inbox is asked: for the winner's body, and for the older events of its object."""

from itertools import pairwise
from typing import Any

import pytest

from app.billing import store
from app.billing.order import hear
from tests.events import subscription
from tests.service import Rows, Served

BROKEN_TRAIL = [
    subscription("evt_1", "paused", before="unpaid", at=10),
    subscription("evt_9", "past_due", before="active", at=10),
]
"""The end of a trail, then its beginning: they do not meet, so the larger id wins, and the row is open."""
MISSING_LINK = subscription("evt_5", "unpaid", before="past_due", at=10)
"""With it the trail ends in the state of `evt_1`, which the row does not hold any more."""


async def broken_trail(served: Served, rows: Rows) -> None:
    for event in BROKEN_TRAIL:
        await served.post(event)
    assert await rows.one("SELECT status FROM subscriptions WHERE open") == "past_due"


async def test_the_state_of_an_earlier_winner_is_read_from_its_body(served: Served, rows: Rows) -> None:
    await broken_trail(served, rows)
    assert (await served.post(MISSING_LINK)).json() == {
        "outcome": "applied",
        "event_id": "evt_5",
        "reason": "settled",
    }
    assert await rows.one("SELECT status FROM subscriptions WHERE NOT open AND state_event_id = 'evt_1'") == "paused"


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM inbox WHERE event_id = 'evt_1'",
        "UPDATE inbox SET source = 'renamed' WHERE event_id = 'evt_1'",
        "UPDATE inbox SET body = '{}' WHERE event_id = 'evt_1'",
    ],
)
async def test_an_event_whose_winner_cannot_be_read_is_parked_alone_and_retried(
    served: Served, rows: Rows, damage: str
) -> None:
    await broken_trail(served, rows)
    kept = (await rows.all("SELECT * FROM inbox WHERE event_id = 'evt_1'"))[0]
    await rows.connection.execute(damage)
    assert (await served.post(MISSING_LINK)).json()["outcome"] == "parked"
    assert await rows.one("SELECT decision->>'error' FROM inbox WHERE event_id = 'evt_5'") == "StateGone"
    assert await rows.one("SELECT status FROM subscriptions") == "past_due"
    neighbour = subscription("evt_7", "active", object_id="sub_2")
    assert (await served.post(neighbour)).json()["outcome"] == "applied"

    await rows.connection.execute("DELETE FROM inbox WHERE event_id = 'evt_1'")
    columns = ", ".join(kept)
    values = ", ".join(f"${place}" for place in range(1, len(kept) + 1))
    await rows.connection.execute(f"INSERT INTO inbox ({columns}) VALUES ({values})", *kept.values())
    assert (await served.post(MISSING_LINK)).json()["outcome"] == "applied"
    assert await rows.one("SELECT status FROM subscriptions WHERE external_id = 'sub_1'") == "paused"
    assert await rows.one("SELECT attempts FROM inbox WHERE event_id = 'evt_5'") == 2
    assert await rows.one("SELECT duplicates FROM processed_events WHERE event_id = 'evt_5'") == 0


async def test_of_a_long_life_only_the_newest_older_events_are_read(
    served: Served, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "OLDER_LIMIT", 3)
    states = ["active", "past_due", "unpaid", "paused", "active", "past_due"]
    events: list[dict[str, Any]] = [
        subscription(f"evt_{place}", after, before=before, at=place)
        for place, (before, after) in enumerate(pairwise(states), start=1)
    ]
    for event in events:
        await served.post(event)
    before = await rows.one("SELECT base FROM subscriptions")
    stale = await served.post(subscription("evt_0", "trialing", before="incomplete", at=-5))
    assert stale.json()["outcome"] == "stale"
    assert await rows.one("SELECT base FROM subscriptions") == before


async def test_an_error_of_the_rule_parks_its_own_event(
    served: Served, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_one(standing: Any, event: Any, older: Any) -> Any:
        if event.event_id == "evt_bad":
            raise ZeroDivisionError
        return hear(standing, event, older)

    monkeypatch.setattr(store, "hear", refuse_one)
    assert (await served.post(subscription("evt_bad", "active"))).json()["outcome"] == "parked"
    assert await rows.one("SELECT count(*) FROM subscriptions") == 0
    await served.post(subscription("evt_good", "past_due"))
    monkeypatch.setattr(store, "hear", hear)
    assert (await served.post(subscription("evt_bad", "active", at=1))).json()["outcome"] == "applied"
    assert await rows.one("SELECT status FROM subscriptions") == "active"
