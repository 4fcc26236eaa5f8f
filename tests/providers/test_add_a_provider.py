"""The page that tells how to add a provider, followed word for word."""

import hashlib
import hmac
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import pytest

from app.clock import utc_now
from app.providers import PROVIDERS
from app.providers.base import Provider
from tests.service import Rows, serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "add-a-provider.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def module_of(code: str, folder: Path) -> ModuleType:
    """The page's file, imported as Python imports any."""
    path = folder / "acme.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("acme", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_a_provider_that_follows_the_page_receives_an_event(
    database_url: str, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, registration = blocks("python")
    module = module_of(code, tmp_path)
    provider: Provider = module.AcmeProvider()
    registry: dict[str, Any] = {}
    exec(registration, {"PROVIDERS": registry, "AcmeProvider": module.AcmeProvider})  # noqa: S102
    assert registry.keys() == {provider.name}
    assert isinstance(PROVIDERS, Mapping)
    monkeypatch.setitem(PROVIDERS, provider.name, provider)
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
    recalled = provider.recall(served.service.sources["acme"], body, utc_now())
    assert (recalled.event_id, recalled.body) == ("evt_1", body)
