"""What the documents say, the code does: names, routes, options, columns and examples are compared."""

import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest
import typer
from pydantic import SecretStr
from starlette.routing import Route

from app.billing.order import Milestones, Standing, hear, heard_of
from app.billing.rows import SubscriptionRow, advance
from app.cli import app as commands
from app.db.models import Base
from app.inbox.receive import _provider_events
from app.inbox.store import Claim, Claims
from app.main import build
from app.outbox.messages import Message, milestone, provider_event, state_message
from app.providers import PROVIDERS, sources
from app.settings import Settings
from tests.events import SOURCE, delivery, subscription

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def read(path: str) -> str:
    return (DOCS / path).read_text()


def test_the_map_names_every_module_and_nothing_else() -> None:
    named = set(re.findall(r"`(app/[\w/]+\.py)`", read("architecture.md")))
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "app").rglob("*.py") if path.name != "__init__.py"}
    assert named == there


@pytest.mark.parametrize("page", ["path-of-a-webhook.md", "architecture.md"])
def test_a_page_names_files_that_exist(page: str) -> None:
    for name in re.findall(r"`(app/[\w/.]+)`", read(page)):
        assert (ROOT / name).exists(), name


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_column_is_described() -> None:
    text = read("tables.md")
    for table in Base.metadata.tables.values():
        assert f"`{table.name}`" in text
        for column in table.columns:
            assert f"`{column.name}`" in text, f"{table.name}.{column.name}"


def test_every_route_is_described() -> None:
    text = read("reference/endpoints.md")
    settings = Settings(_env_file=None, database_url=SecretStr("postgresql://x@127.0.0.1/x"))
    api = build(settings).app.api
    documented = api.openapi()["paths"]
    assert "/webhooks/{source}" in documented
    for path in {*documented, *(route.path for route in api.routes if isinstance(route, Route))}:
        assert f" {path}`" in text, path


def test_every_command_and_option_is_described() -> None:
    text = read("reference/commands.md")
    group: Any = typer.main.get_command(commands)
    assert len(group.commands) >= 5
    for name, command in group.commands.items():
        assert f"`oncehook {name}" in text, name
        for option in (option for parameter in command.params for option in parameter.opts):
            assert option in text or not option.startswith("-"), f"{name} {option}"


def test_every_key_of_the_sources_file_is_described() -> None:
    text = read("reference/sources-file.md")
    for key in [*sources._SourceEntry.model_fields, *sources._SecretEntry.model_fields]:
        assert f"`{key}`" in text, key


def produced() -> dict[str, Message]:
    """The messages of a small life, as the code makes them."""
    row = SubscriptionRow(1, "stripe:self:test", "sub_1", "default", Standing(), None, Milestones())
    messages: dict[str, Message] = {}
    for event in (
        subscription("evt_1", "incomplete", kind="created"),
        subscription("evt_2", "active", at=5, before="incomplete"),
        subscription("evt_3", "canceled", at=9, kind="deleted"),
    ):
        meaning: Any = PROVIDERS["stripe"].changes(delivery(event))
        (change,) = meaning
        step = hear(row.standing, heard_of(change))
        row, decision = advance(row, replace(change), step, change.state)
        messages |= {message.type: message for message in decision.messages if message.type not in messages}
    return messages


def shape(value: Any) -> Any:
    """The keys of a document, whatever its values."""
    return {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else None


def examples_of_messages() -> dict[str, Any]:
    """The examples of the page, by their type."""
    found = map(json.loads, re.findall(r"```json\n(.*?)```", read("messages.md"), re.DOTALL))
    return {example["type"]: example for example in found}


def test_every_message_has_an_example_of_its_shape() -> None:
    text = read("messages.md")
    examples = examples_of_messages()
    made = {type_: orjson.loads(orjson.dumps(message.payload)) for type_, message in produced().items()}
    recorded = examples.pop("provider.event")
    (published,) = _provider_events(
        Claims(
            [Claim(delivery(subscription("evt_1", "active"), source=replace(SOURCE, publish_events=True)), [0], True)]
        )
    )
    assert recorded.keys() == published.payload.keys()
    assert recorded["data"].keys() == published.payload["data"].keys()
    assert examples.keys() == made.keys()
    for type_, example in examples.items():
        assert f"## `{type_}`" in text
        assert shape(example) == shape(made[type_]), type_
    item = examples["subscription.created"]["data"]["items"][0]
    assert shape(item) == shape(made["subscription.created"]["data"]["items"][0])


def test_the_ids_of_the_examples_are_those_that_the_code_would_give_them() -> None:
    for type_, example in examples_of_messages().items():
        subject, data = example["subject"], example["data"]
        time = datetime.fromisoformat(example["time"])
        if type_ == "provider.event":
            made = provider_event(data["namespace"], data["event_id"], time=time, data=data)
        elif type_ == "subscription.updated":
            made = state_message(type_, subject, version=data["version"], time=time, data=data)
        else:
            made = milestone(type_, subject, anchor=subject, time=time, data=data)
        assert (example["id"], subject) == (str(made.message_id), made.subject), type_


QUERIES = [
    pytest.param(query.strip(), id=f"{page.name}-{place}")
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    for place, query in enumerate(
        query
        for block in re.findall(r"```sql\n(.*?)```", page.read_text(), re.DOTALL)
        for query in block.split(";")
        if query.strip()
    )
]


def test_there_are_queries_to_try() -> None:
    assert {str(parameter.id).split("-")[0] for parameter in QUERIES} >= {"README.md", "messages.md", "runbook.md"}


@pytest.mark.parametrize("query", QUERIES)
async def test_a_query_of_the_documents_is_one_that_the_database_takes(query: str, database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("CREATE TABLE handled (message_id uuid PRIMARY KEY)")  # a consumer's own
        await connection.prepare(query)
    finally:
        await connection.close()
