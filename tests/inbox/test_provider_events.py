"""Every recorded event leaves as a message too, where its source asks for it."""

from pathlib import Path

import orjson

from tests.events import SECRET, subscription
from tests.service import Rows, post, serving


async def test_a_source_that_asks_gets_one_message_for_each_event_it_records(
    database_url: str, rows: Rows, tmp_path: Path
) -> None:
    path = tmp_path / "sources.toml"
    path.write_text(
        f'[[sources]]\nname = "all"\nprovider = "stripe"\nsecrets = ["{SECRET.decode()}"]\npublish_events = true\n'
    )
    odd = (
        rb'{"id": "evt_2", "type": "x.y", "created": %d, "livemode": false,'
        rb' "data": {"object": {"a": "\u0000\ud83d", "n": 99999999999999999999999}}}'
    )
    ignored = odd % subscription("evt_2", "active")["created"]
    expired = {**subscription("evt_3", "active"), "created": 1_500_000_000}
    async with serving(database_url, sources_file=path, stripe_webhook_secrets="") as served:
        for event in (subscription("evt_1", "active", kind="created"), ignored, ignored, expired):
            assert (await post(served.client, event, "/webhooks/all")).status_code == 200
    found = await rows.all("SELECT subject, payload FROM outbox WHERE type = 'provider.event' ORDER BY position")
    assert [row["subject"] for row in found] == ["event/stripe:self:test/evt_1", "event/stripe:self:test/evt_2"]
    data = orjson.loads(found[1]["payload"])["data"]
    assert (data["type"], data["source"], data["object_id"]) == ("x.y", "all", None)
    assert data["payload"]["data"]["object"] == {"a": "��", "n": "99999999999999999999999"}
    assert await rows.one("SELECT body FROM inbox WHERE event_id = 'evt_2'") == ignored


async def test_a_source_that_does_not_ask_gets_none(database_url: str, rows: Rows) -> None:
    async with serving(database_url) as served:
        await served.post(subscription("evt_1", "active", kind="created"))
    assert await rows.one("SELECT count(*) FROM outbox WHERE type = 'provider.event'") == 0
