"""What the documents say, the code does: names, routes, options, columns and examples are compared."""

import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer
from pydantic import SecretStr

from app.billing.order import Milestones, Standing, hear, heard_of
from app.billing.rows import SubscriptionRow, advance
from app.cli import app as commands
from app.db.models import Base
from app.inbox import receive
from app.main import build
from app.outbox.messages import Message
from app.providers import PROVIDERS
from app.settings import Settings
from tests.events import delivery, subscription

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
    paths = build(settings).app.api.openapi()["paths"]
    assert "/webhooks/{source}" in paths
    for path in paths:
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
    keys = ["name", "provider", "secrets", "namespace", "shared", "publish_events", "livemode", "tenant"]
    for key in [*keys, "max_body_bytes", "deadline_seconds", "tolerance_seconds"]:
        assert f"`{key}`" in text


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


def test_every_message_has_an_example_of_its_shape() -> None:
    text = read("messages.md")
    examples = {
        example["type"]: example for example in map(json.loads, re.findall(r"```json\n(.*?)```", text, re.DOTALL))
    }
    made = {type_: orjson.loads(orjson.dumps(message.payload)) for type_, message in produced().items()}
    recorded = examples.pop("provider.event")["data"]
    assert recorded.keys() == set(re.findall(r'^                "(\w+)":', inspect.getsource(receive), re.MULTILINE))
    assert examples.keys() == made.keys()
    for type_, example in examples.items():
        assert f"## `{type_}`" in text
        assert shape(example) == shape(made[type_]), type_
    item = examples["subscription.created"]["data"]["items"][0]
    assert shape(item) == shape(made["subscription.created"]["data"]["items"][0])
