"""Which sources there are: `stripe` and `github` from their environment variables, and those of a TOML file."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from app.errors import ConfigurationError
from app.providers import PROVIDERS
from app.providers.base import LiveMode, Provider, Secret, Source

_NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
_WORD = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,254}$"
"""No colon: it parts a namespace from what stands before and after it."""

_LABELLED = re.compile(r"(?!whsec_)(?P<label>[^:]*):(?P<value>.*)", re.DOTALL)
"""`label:secret`; what starts with `whsec_` is a secret whole."""


class _SecretEntry(BaseModel):
    """A secret in the file: a text, or a table with its value or the environment variable that holds it."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    label: str | None = Field(default=None, pattern=_NAME)
    value: str | None = None
    env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_is_the_value(cls, entry: Any) -> Any:
        return {"value": entry} if isinstance(entry, str) else entry

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.value is None) == (self.env is None):
            message = "needs either value or env"
            raise ValueError(message)
        return self


class _SourceEntry(BaseModel):
    """One `[[sources]]` table; what is left out takes the default of `Source` or of the provider."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    name: str = Field(pattern=_NAME)
    provider: str
    secrets: list[_SecretEntry] = Field(min_length=1)
    namespace: str | None = Field(default=None, pattern=_WORD)
    livemode: LiveMode = "any"
    tenant: str = Field(default="default", pattern=_WORD)
    shared: bool = False
    publish_events: bool = False
    max_body_bytes: int | None = Field(default=None, ge=1_000, le=50_000_000)
    deadline_seconds: float | None = Field(default=None, ge=0.5, le=60)
    tolerance_seconds: int = Field(default=300, ge=1, le=3600)


def configured_sources(
    secrets: Mapping[str, Sequence[str]], sources_file: Path | None, environment: Mapping[str, str]
) -> dict[str, Source]:
    """Every source by its name.

    `secrets` are those of the environment variables, by provider; given any, the source of the provider's name exists.
    Stripe's are whole (`whsec_…`) or `label:whsec_…`; all others are whole, as a colon may be part of one.

    Raises:
        ConfigurationError: a source cannot work; the message names it and the key, and shows no secret.
    """
    sources: dict[str, Source] = {}
    from_environment = [_from_environment(name, given) for name, given in secrets.items() if given]
    for source in [*from_environment, *_from_file(sources_file, environment)]:
        if source.name in sources:
            raise _wrong(source.name, "name", "another source has it too")
        sources[source.name] = source
    _refuse_common_namespaces(sources.values())
    return sources


def _from_environment(name: str, given: Sequence[str]) -> Source:
    provider = PROVIDERS[name]
    variable = f"{name.upper()}_WEBHOOK_SECRETS"
    pairs = [_labelled(variable, item) if name == "stripe" else (None, item) for item in given]
    return Source(
        name=name,
        provider=name,
        secrets=_keys(name, provider, _secrets(name, variable, pairs)),
        namespace=name if provider.namespace_per_source else None,
        max_body_bytes=provider.default_max_body_bytes,
        deadline_seconds=provider.default_deadline_seconds,
    )


def _labelled(variable: str, item: str) -> tuple[str | None, str]:
    labelled = _LABELLED.fullmatch(item)
    if labelled is None:
        return None, item
    if not re.fullmatch(_NAME, labelled["label"]):
        raise _wrong("stripe", variable, f"a label does not match {_NAME}")
    return labelled["label"], labelled["value"]


def _from_file(sources_file: Path | None, environment: Mapping[str, str]) -> list[Source]:
    if sources_file is None:
        return []
    try:
        document = tomllib.loads(sources_file.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"SOURCES_FILE {sources_file} cannot be read: {error.strerror}"
        raise ConfigurationError(message) from error
    except ValueError as error:  # UnicodeDecodeError and TOMLDecodeError; neither is chained, they hold the file's text
        place = error if isinstance(error, tomllib.TOMLDecodeError) else "it is not UTF-8"
        message = f"SOURCES_FILE {sources_file} is not TOML: {place}"
        raise ConfigurationError(message) from None
    tables = document.pop("sources", [])
    if document or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        message = f"SOURCES_FILE {sources_file} may hold [[sources]] tables and nothing else"
        raise ConfigurationError(message)
    return [_source(table, position, environment) for position, table in enumerate(tables, start=1)]


def _source(table: Mapping[str, Any], position: int, environment: Mapping[str, str]) -> Source:
    name = table.get("name")
    shown = name if isinstance(name, str) and re.fullmatch(_NAME, name) else f"number {position} of the file"
    try:
        entry = _SourceEntry.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise _wrong(shown, key, first["msg"].removeprefix("Value error, ")) from None
    provider = PROVIDERS.get(entry.provider)
    if provider is None:
        raise _wrong(shown, "provider", f"there is none of this name, only {', '.join(sorted(PROVIDERS))}")
    if entry.livemode != "any" and not provider.has_modes:
        raise _wrong(shown, "livemode", f"{entry.provider} has no live and test mode")
    pairs = [(secret.label, _value(shown, secret, environment)) for secret in entry.secrets]
    return Source(
        name=entry.name,
        provider=entry.provider,
        secrets=_keys(shown, provider, _secrets(shown, "secrets", pairs)),
        namespace=entry.namespace or (entry.name if provider.namespace_per_source else None),
        tenant=entry.tenant,
        livemode=entry.livemode,
        shared=entry.shared,
        publish_events=entry.publish_events,
        max_body_bytes=entry.max_body_bytes or provider.default_max_body_bytes,
        deadline_seconds=entry.deadline_seconds or provider.default_deadline_seconds,
        tolerance_seconds=entry.tolerance_seconds,
    )


def _keys(source: str, provider: Provider, secrets: Iterable[Secret]) -> tuple[Secret, ...]:
    keys: list[Secret] = []
    for secret in secrets:
        try:
            keys.append(Secret(secret.label, provider.key_of(secret.value)))
        except ValueError as error:
            raise _wrong(source, "secrets", f"the secret {secret.label} {error}") from None
    return tuple(keys)


def _value(source: str, secret: _SecretEntry, environment: Mapping[str, str]) -> str:
    if secret.env is None:
        return secret.value or ""
    if secret.env not in environment:
        raise _wrong(source, "secrets", f"the environment variable {secret.env} is not set")
    return environment[secret.env]


def _secrets(source: str, key: str, pairs: Iterable[tuple[str | None, str]]) -> tuple[Secret, ...]:
    """Secrets with their labels, `secret-1` and so on by default, as the UTF-8 that keys the MAC."""
    secrets: dict[str, Secret] = {}
    for position, (given, value) in enumerate(pairs, start=1):
        label = given or f"secret-{position}"
        if not value.strip():
            raise _wrong(source, key, f"the secret {label} is empty")
        if value != value.strip():
            raise _wrong(source, key, f"the secret {label} has white space around it")
        if label in secrets:
            raise _wrong(source, key, f"two secrets have the label {label}")
        try:
            secrets[label] = Secret(label, value.encode("utf-8", "surrogateescape"))  # as os.environ decodes bytes
        except UnicodeEncodeError:
            raise _wrong(source, key, f"the secret {label} is not UTF-8") from None
    return tuple(secrets.values())


def _refuse_common_namespaces(sources: Iterable[Source]) -> None:
    """Two accounts must not share a namespace, for one's events would pass for repeats of the other's."""
    for one, other in combinations(sources, 2):
        same = (one.provider, one.namespace or "self") == (other.provider, other.namespace or "self")
        modes_meet = "any" in (one.livemode, other.livemode) or one.livemode == other.livemode
        if same and modes_meet and not (one.shared and other.shared):
            problem = f"it is that of source {one.name} too: give each its own, or both shared = true if one account"
            raise _wrong(other.name, "namespace", problem)


def _wrong(source: str, key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"source {source}: {key}: {problem}")
