"""The page that tells how to add a provider, followed word for word."""

import hashlib
import hmac
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

import app.providers
from app.clock import utc_now
from app.errors import NotAnEvent, SignatureError
from app.providers import PROVIDERS
from app.providers.base import Provider, Request, Secret, Source
from tests.service import Rows, serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "add-a-provider.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def module_of(code: str, folder: Path) -> ModuleType:
    """The page's file, imported as Python imports any; its own name keeps it out of what coverage counts as ours."""
    path = folder / "acme.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("acme", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def registry_with(imported: str, line: str) -> dict[str, Provider]:
    """The registry's file with the page's two lines in it."""
    code = Path(app.providers.__file__).read_text()
    for anchor, added in (
        ("from app.providers.base", imported + "from app.providers.base"),
        ("] = {\n", f"] = {{\n{line}"),
    ):
        assert code.count(anchor) == 1
        code = code.replace(anchor, added)
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    registry: dict[str, Provider] = names["PROVIDERS"]
    return registry


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    """The page's provider, registered as the page says."""
    code, imported, line = blocks("python")
    monkeypatch.setitem(sys.modules, "app.providers.acme", module_of(code, tmp_path))
    registry = registry_with(imported, line)
    assert registry.keys() == PROVIDERS.keys() | {"acme"}
    assert isinstance(PROVIDERS, dict)
    monkeypatch.setitem(PROVIDERS, "acme", registry["acme"])
    return registry["acme"]


async def test_a_provider_that_follows_the_page_receives_an_event(
    database_url: str, rows: Rows, tmp_path: Path, acme: Provider
) -> None:
    sources = tmp_path / "sources.toml"
    sources.write_text(blocks("toml")[0])

    body = orjson.dumps({"id": "evt_1", "type": "anvil.dropped", "at": int(utc_now().timestamp())})
    signature = hmac.digest(b"a secret", body, hashlib.sha256).hex()
    async with serving(database_url, sources_file=sources, stripe_webhook_secrets="") as served:
        answers = [
            await served.client.post("/webhooks/acme", content=body, headers={"acme-signature": given})
            for given in (signature, signature, "0" * 64)
        ]
    assert [answer.status_code for answer in answers] == [200, 200, 401]
    assert [answer.json().get("outcome") for answer in answers] == ["ignored", "duplicate", None]
    assert await rows.one("SELECT subject FROM outbox") == "event/acme:acme/evt_1"
    recalled = acme.recall(served.service.sources["acme"], body, utc_now())
    assert (recalled.event_id, recalled.body) == ("evt_1", body)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"id": "evt_1", "type": "x", "at": true}',
        b'{"id": "evt_1", "type": "x", "at": 1e300}',
        b'{"id": "evt_1", "type": "x", "at": 253402300800}',
        b'{"id": "\\u0000", "type": "x", "at": 1}',
        b'{"id": "evt_1", "type": "", "at": 1}',
    ],
)
def test_what_is_signed_but_no_event_is_refused_by_the_page_too(acme: Provider, body: bytes) -> None:
    source = Source("acme", "acme", (Secret("main", b"a secret"),))
    signature = hmac.digest(b"a secret", body, hashlib.sha256).hex()
    with pytest.raises(NotAnEvent):
        acme.read(source, Request({"acme-signature": signature}, body), utc_now())


@pytest.mark.parametrize("headers", [{}, {"acme-signature": ""}, {"acme-signature": "\xe9" * 64}])
def test_what_is_not_proved_is_refused_by_the_page_too(acme: Provider, headers: dict[str, str]) -> None:
    source = Source("acme", "acme", (Secret("empty", b""), Secret("main", b"a secret")))
    with pytest.raises(SignatureError):
        acme.read(source, Request(headers, b"{}"), utc_now())
