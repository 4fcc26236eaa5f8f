"""An event takes effect once, however often and however concurrently it is delivered."""

import asyncio
from collections import Counter

import httpx

from tests.events import life, subscription
from tests.service import Rows, Served, post, process


async def test_an_event_sent_again_is_a_duplicate_and_changes_nothing(served: Served, rows: Rows) -> None:
    event = subscription("evt_1", "active", kind="created")
    answers = [(await served.post(event)).json()["outcome"] for _ in range(3)]
    assert answers == ["applied", "duplicate", "duplicate"]
    assert await rows.counts() == {"processed_events": 1, "inbox": 1, "subscriptions": 1, "outbox": 2}
    assert await rows.one("SELECT duplicates FROM processed_events") == 2


async def test_fifty_deliveries_at_once_apply_one_and_count_forty_nine(served: Served, rows: Rows) -> None:
    event = subscription("evt_1", "active", kind="created")
    answers = await asyncio.gather(*(served.post(event) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert Counter(answer.json()["outcome"] for answer in answers) == {"applied": 1, "duplicate": 49}
    assert await rows.counts() == {"processed_events": 1, "inbox": 1, "subscriptions": 1, "outbox": 2}
    assert await rows.one("SELECT duplicates FROM processed_events") == 49


async def test_two_processes_given_the_same_events_at_once_apply_each_once(database_url: str, rows: Rows) -> None:
    async with process(database_url) as left, process(database_url) as right, httpx.AsyncClient() as client:
        sends = [
            post(client, event, f"{server.url}/webhooks/stripe")
            for event in life()
            for server in (left, right)
            for _ in range(8)
        ]
        answers = await asyncio.gather(*sends)
    assert {answer.status_code for answer in answers} == {200}
    outcomes = Counter((answer.json()["event_id"], answer.json()["outcome"] == "duplicate") for answer in answers)
    assert all(outcomes[event["id"], False] == 1 for event in life())
    assert await rows.one("SELECT sum(duplicates) FROM processed_events") == 6 * 15
    messages = await rows.all("SELECT type, count(*) FROM outbox WHERE type <> 'subscription.updated' GROUP BY type")
    assert {row["type"]: row["count"] for row in messages} == {
        "subscription.created": 1,
        "subscription.activated": 1,
        "subscription.canceled": 1,
    }


async def test_one_id_under_two_accounts_is_two_events(served: Served, rows: Rows) -> None:
    for account in ("acct_1", "acct_2", None):
        answer = await served.post(subscription("evt_1", "active", kind="created", account=account))
        assert answer.json()["outcome"] == "applied"
    live = subscription("evt_1", "active", kind="created", livemode=True)
    assert (await served.post(live)).json()["outcome"] == "applied"
    namespaces = {row["namespace"] for row in await rows.subscriptions()}
    assert namespaces == {"stripe:acct_1:test", "stripe:acct_2:test", "stripe:self:test", "stripe:self:live"}


async def test_what_varies_between_deliveries_of_one_event_is_no_mismatch(served: Served, rows: Rows) -> None:
    event = subscription("evt_1", "active", kind="created")
    await served.post(event)
    reordered = dict(reversed(event.items())) | {"pending_webhooks": 0}
    other_endpoint = {**event, "api_version": "2020-08-27", "data": {"object": event["data"]["object"], "x": 1}}
    for again in (reordered, other_endpoint):
        assert (await served.post(again)).json()["outcome"] == "duplicate"
    assert await rows.one("SELECT mismatches FROM processed_events") == 0


async def test_other_content_under_a_known_id_is_counted_and_flagged(served: Served, rows: Rows) -> None:
    await served.post(subscription("evt_1", "active", kind="created"))
    forged = await served.post(subscription("evt_1", "past_due", kind="created"))
    assert forged.json()["outcome"] == "duplicate"
    assert await rows.one("SELECT mismatches FROM processed_events") == 1
    assert await rows.one("SELECT status FROM subscriptions") == "active"
