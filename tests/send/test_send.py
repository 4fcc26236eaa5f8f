"""`oncehook send`: realistic events that the provider takes, and a first experience that tells the truth."""

import asyncio
import json
import random
from itertools import permutations
from pathlib import Path

import httpx
import orjson
import pytest
from typer.testing import CliRunner, Result

from app.billing.changes import NOTHING, SubscriptionChange
from app.billing.order import Standing, hear, heard_of, needs_history
from app.cli import app
from app.clock import utc_now
from app.errors import ConfigurationError
from app.providers.base import Ignored
from app.providers.stripe import StripeProvider
from app.send.client import Target, deliver
from app.send.files import bodies_of
from app.send.stripe_events import lifecycle, printed
from tests.events import SECRET, body_of, delivery, subscription
from tests.service import Rows, process

RNG_SEED = 7


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(app, ["send", *arguments])


def changes() -> list[SubscriptionChange]:
    found = []
    for event in lifecycle(utc_now(), random.Random(RNG_SEED)):
        meaning = StripeProvider().changes(delivery(printed(event)))
        if not isinstance(meaning, Ignored):
            found += list(meaning)
    return found


def test_the_edges_of_a_life_chain_up_from_nothing_to_its_end() -> None:
    *updates, ended = changes()
    state = NOTHING
    for change in updates:
        assert change.pre_hash == state
        state = change.post_hash
    assert ended.state.terminal


def test_a_life_ends_the_same_in_every_order() -> None:
    heard = [heard_of(change) for change in changes()]
    ends = set()
    for order in permutations(heard):
        standing = Standing()
        for place, event in enumerate(order):
            standing = hear(standing, event, order[:place] if needs_history(standing, event) else ()).standing
        ends.add(standing.winner)
    assert ends == {heard[-1]}


def test_a_seed_makes_ids_and_order_repeatable() -> None:
    now = utc_now()
    assert lifecycle(now, random.Random(1)) == lifecycle(now, random.Random(1))
    assert lifecycle(now, random.Random(1)) != lifecycle(now, random.Random(2))


def test_a_file_is_sent_with_fresh_ids_and_recent_times_and_its_distances_stay(tmp_path: Path) -> None:
    events = [subscription("evt_1", "active", at=-90_000), subscription("evt_2", "past_due", at=-80_000)]
    path = tmp_path / "events.json"
    path.write_text(json.dumps(events))
    sent = [orjson.loads(body) for body in bodies_of(path, utc_now(), random.Random(1), as_is=False)]
    assert {event["id"] for event in sent}.isdisjoint({"evt_1", "evt_2"})
    assert sent[1]["created"] - sent[0]["created"] == 10_000
    assert 0 <= utc_now().timestamp() - sent[1]["created"] < 330
    lines = tmp_path / "events.jsonl"
    lines.write_bytes(b"\n".join(json.dumps(event).encode() for event in events))
    assert len(bodies_of(lines, utc_now(), random.Random(1), as_is=False)) == 2
    thin = tmp_path / "thin.json"
    thin.write_text('{"id": "evt_test_1", "type": "v1.x", "created": "2026-01-01T00:00:00.000Z"}')
    (body,) = bodies_of(thin, utc_now(), random.Random(1), as_is=False)
    assert orjson.loads(body)["created"] == "2026-01-01T00:00:00.000Z"


def test_a_file_as_it_is_goes_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_bytes(b'{"id": "evt_1",   "type": "x"}\n')
    assert bodies_of(path, utc_now(), random.Random(1), as_is=True) == [path.read_bytes()]
    path.write_bytes(b'[{"id": "evt_1", "type": "x"}, {"id": "evt_2", "type": "x"}]')
    assert len(bodies_of(path, utc_now(), random.Random(1), as_is=True)) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "[1]", '{"id": "evt_1"}', "{}\n{"])
def test_a_file_without_events_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"wrong\.json"):
        bodies_of(path, utc_now(), random.Random(1), as_is=False)


async def test_a_refused_delivery_is_sent_again_with_a_new_signature() -> None:
    answers = [httpx.Response(503, headers={"retry-after": "0"}), httpx.Response(200, json={"outcome": "applied"})]
    signatures: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        signatures.append(request.headers["stripe-signature"])
        return answers[len(signatures) - 1]

    target = Target("http://oncehook/webhooks/stripe", SECRET)
    body = body_of(subscription("evt_1", "active"))
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        (sent,) = await deliver(client, target, [body], utc_now, told=lambda: None)
    assert (sent.status, sent.outcome, len(signatures)) == (200, "applied", 2)


async def test_an_answer_that_is_not_ours_is_told_as_such() -> None:
    answers = iter([httpx.Response(502, text="<html>"), httpx.Response(404, json=["no"])])
    transport = httpx.MockTransport(lambda _: next(answers))
    body = body_of(subscription("evt_1", "active"))
    async with httpx.AsyncClient(transport=transport) as client:
        sent = await deliver(client, Target("http://x", SECRET), [body, body], utc_now, told=lambda: None)
    assert sorted((one.status, one.outcome) for one in sent) == [
        (404, "no answer that can be read"),
        (502, "no answer that can be read"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stripe"], "lifecycle"),
        (["stripe", "nonsense"], "lifecycle"),
        (["paypal", "lifecycle"], "no provider"),
        (["missing.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_sent_is_an_error_of_one_line(arguments: list[str], said: str) -> None:
    found = run(*arguments, STRIPE_WEBHOOK_SECRETS="whsec_x")
    assert found.exit_code == 2
    assert said in found.stderr.replace("\n", " ")


def test_no_secret_and_no_service_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no secret" in run("stripe", "lifecycle", STRIPE_WEBHOOK_SECRETS="").stderr
    gone = run("stripe", "lifecycle", "--url", "http://127.0.0.1:9", STRIPE_WEBHOOK_SECRETS="new:whsec_x")
    assert gone.exit_code == 2
    assert "nothing answers" in gone.stderr


async def test_a_shuffled_life_with_duplicates_ends_in_one_canceled_row(
    database_url: str, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with process(database_url) as server:
        (tmp_path / ".oncehook").mkdir()
        (tmp_path / ".oncehook" / "dev.env").write_text(
            f"STRIPE_WEBHOOK_SECRETS={SECRET.decode()}\nDATABASE_URL={database_url}\nONCEHOOK_URL={server.url}\n"
        )
        shown = await asyncio.to_thread(run, "stripe", "lifecycle", "--shuffle", "--duplicates", "3")
        assert shown.exit_code == 0, shown.output
        many = await asyncio.to_thread(run, "stripe", "lifecycle", "--count", "25", "--json", "--seed", "1")
        assert many.exit_code == 0
        assert len(orjson.loads(many.stdout)) == 25 * 7
        more = await asyncio.to_thread(run, "stripe", "lifecycle", "--count", "25", "--seed", "2")
        assert "and 5 more" in more.stdout
        refused = await asyncio.to_thread(run, "stripe", "lifecycle", "--source", "nowhere")
        assert refused.exit_code == 1
        assert "unknown_source" in refused.stdout
        blind = await asyncio.to_thread(run, "stripe", "lifecycle", DATABASE_URL="postgresql://x@127.0.0.1:9/x")
        assert "not reachable" in blind.stdout
    assert "canceled" in shown.stdout
    assert "Duplicates counted in the ledger: 21" in shown.stdout
    assert {row["status"] for row in await rows.subscriptions()} == {"canceled"}
