"""`oncehook send`: realistic events that the provider takes, and a first experience that tells the truth."""

import asyncio
import json
import random
from collections.abc import Callable
from datetime import timedelta
from itertools import permutations
from pathlib import Path

import httpx
import orjson
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from app.billing.changes import NOTHING, SubscriptionChange
from app.billing.order import Standing, hear, heard_of, needs_history
from app.cli import app
from app.clock import utc_now
from app.errors import ConfigurationError
from app.providers.base import Ignored
from app.providers.stripe import StripeProvider
from app.providers.stripe.signature import sign
from app.send.client import NO_ANSWER, Sent, Target, deliver
from app.send.files import bodies_of
from app.send.queries import Made
from app.send.report import show_rows
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


def test_two_updates_of_a_life_share_a_second_so_that_the_tie_rule_is_seen_at_work() -> None:
    updates = [event for event in lifecycle(utc_now(), random.Random(RNG_SEED)) if event["type"].endswith(".updated")]
    seconds = [event["created"] for event in updates]
    assert len(set(seconds)) == len(seconds) - 1


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


def test_the_creation_of_a_files_object_moves_with_its_event(tmp_path: Path) -> None:
    original = subscription("evt_1", "active", at=-90_000)
    path = tmp_path / "event.json"
    path.write_text(json.dumps(original))
    (body,) = bodies_of(path, utc_now(), random.Random(1), as_is=False)
    moved = orjson.loads(body)
    age = original["created"] - original["data"]["object"]["created"]
    assert moved["created"] - moved["data"]["object"]["created"] == age
    assert moved["data"]["object"] | {"created": 0} == original["data"]["object"] | {"created": 0}


@pytest.mark.parametrize(
    ("content", "bodies"),
    [
        (b'{"id": "evt_1",   "type": "x"}\n', [b'{"id": "evt_1",   "type": "x"}\n']),
        (
            b'{"id":  "e", "type": "x"}\n\n{"id":"f","type":"x"}\n',
            [b'{"id":  "e", "type": "x"}', b'{"id":"f","type":"x"}'],
        ),
        (b'[{"id": "evt_1", "type": "x"}]', [b'{\n  "id": "evt_1",\n  "type": "x"\n}']),
    ],
    ids=["one", "lines", "an array of one"],
)
def test_a_file_as_it_is_keeps_the_bytes_of_its_events(tmp_path: Path, content: bytes, bodies: list[bytes]) -> None:
    path = tmp_path / "event.json"
    path.write_bytes(content)
    assert bodies_of(path, utc_now(), random.Random(1), as_is=True) == bodies


async def test_a_lone_surrogate_of_a_file_is_sent_as_its_escape(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text('{"id": "evt_1", "type": "x", "name": "\\ud800 ß"}')
    bodies = bodies_of(path, utc_now(), random.Random(1), as_is=False)
    assert '"\\ud800 ß"'.encode() in bodies[0]
    assert (await sent_to(lambda _: httpx.Response(200, json={}), bodies))[0].type == "x"


@pytest.mark.parametrize("content", ["", "{", "[]", "[1]", '{"id": "evt_1"}', '{"id": 1, "type": "x"}', "{}\n{"])
def test_a_file_without_events_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"wrong\.json"):
        bodies_of(path, utc_now(), random.Random(1), as_is=False)


async def sent_to(answer: Callable[[httpx.Request], httpx.Response], bodies: list[bytes]) -> list[Sent]:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        return await deliver(client, Target("http://x", SECRET), bodies, utc_now, told=lambda: None)


@pytest.mark.parametrize("retry_after", ["0", "Wed, 21 Oct 2026 07:28:00 GMT"])
async def test_a_refused_delivery_is_signed_and_sent_again(retry_after: str) -> None:
    answers = iter(
        [httpx.Response(503, headers={"retry-after": retry_after}), httpx.Response(200, json={"outcome": "applied"})]
    )
    body = body_of(subscription("evt_1", "active"))
    now = utc_now()
    times = iter([now, now + timedelta(seconds=1)])
    tries: list[tuple[str, bytes]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tries.append((request.headers["stripe-signature"], request.content))
        return next(answers)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        (sent,) = await deliver(client, Target("http://x", SECRET), [body], lambda: next(times), told=lambda: None)
    assert (sent.status, sent.outcome) == (200, "applied")
    second = int(now.timestamp())
    assert tries == [(sign(SECRET, second, body), body), (sign(SECRET, second + 1, body), body)]


async def test_an_answer_that_is_lost_costs_the_others_nothing() -> None:
    lost = iter([True, False])

    def answer(_: httpx.Request) -> httpx.Response:
        if next(lost):
            raise httpx.ReadTimeout("slow")
        return httpx.Response(200, json={"outcome": "applied"})

    body = body_of(subscription("evt_1", "active"))
    sent = await sent_to(answer, [body, body])
    assert sorted((one.status, one.outcome, one.taken) for one in sent) == [
        (NO_ANSWER, "no answer", False),
        (200, "applied", True),
    ]


async def test_an_answer_that_is_not_ours_is_told_as_such() -> None:
    answers = iter([httpx.Response(502, text="<html>"), httpx.Response(404, json=["no"])])
    body = body_of(subscription("evt_1", "active"))
    sent = await sent_to(lambda _: next(answers), [body, body])
    assert sorted((one.status, one.outcome) for one in sent) == [
        (404, "no answer that can be read"),
        (502, "no answer that can be read"),
    ]


def test_the_rows_fit_a_terminal_of_80_characters_and_their_dates_stay_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = utc_now()
    times = {"current_period_end": now, "updated_at": now, "occurred_at": now}
    row = {
        "external_id": "sub_1" * 5,
        "status": "canceled",
        "plan": "price_1" * 4,
        "version": 5,
        "open": False,
        **times,
    }
    event = {"event_id": "evt_1" * 5, "type": "customer.subscription.updated", "outcome": "duplicate", "duplicates": 3}
    message = {"type": "subscription.created", "messages": 1}
    show_rows(Console(width=80), Made([row], [message], [event | times]))
    shown = capsys.readouterr().out
    assert shown.count(f"{now:%Y-%m-%d}") == 3
    assert all(line[-1] in "┓┃┩│┘" for line in shown.splitlines() if line[0] in "┏┃┡│└")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stripe"], "lifecycle"),
        (["stripe", "nonsense"], "lifecycle"),
        (["paypal", "lifecycle"], "no provider"),
        (["missing[red].json"], "missing[red].json cannot be read"),
        (["stripe", "lifecycle", "--url", "localhost:8000"], "is no URL to send to"),
        (["stripe", "lifecycle", "--url", "http://x:port"], "is no URL to send to"),
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
    server: str, database_url: str, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with process(database_url) as service:
        (tmp_path / ".oncehook").mkdir()
        (tmp_path / ".oncehook" / "dev.env").write_text(
            f"STRIPE_WEBHOOK_SECRETS={SECRET.decode()}\nDATABASE_URL={database_url}\nONCEHOOK_URL={service.url}\n"
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
        without_our_tables = server
        for other in ("postgresql://x@127.0.0.1:9/x", "mysql://x@127.0.0.1/x", without_our_tables):
            blind = await asyncio.to_thread(run, "stripe", "lifecycle", DATABASE_URL=other)
            assert blind.exit_code == 0, blind.output
            assert "What the service answered" in blind.stdout
            assert "cannot be read from here" in blind.stdout
    (row,) = [line for line in shown.stdout.splitlines() if "sub_1" in line]
    assert {"canceled", "no"} < {cell.strip() for cell in row.split("│")}
    events = [line for line in shown.stdout.splitlines() if "evt_1" in line]
    assert [line.split("│")[-2].strip() for line in events] == ["3"] * 7
    assert "Duplicates counted in the ledger: 21" in shown.stdout
    assert {row["status"] for row in await rows.subscriptions()} == {"canceled"}
