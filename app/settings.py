"""Every setting of the service, read from the environment (or `.env`) once, in `main` and `cli`."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

MINIMUM_HORIZON_DAYS = 35
"""The longest way an event can come back is 30 days (Stripe: `stripe events resend`, the events API), and slack."""


class Settings(BaseSettings):
    """Names are the environment variables in lower case."""

    model_config = SettingsConfigDict(env_file=".env", env_file_encoding="utf-8", extra="ignore", frozen=True)

    database_url: SecretStr | None = None
    """A plain `postgresql://` URL; libpq parameters work. Unset: only `oncehook dev` works, on an embedded server."""
    pg_bindir: Path | None = None
    """Where `oncehook dev` finds `postgres` and `initdb` when the embedded binaries do not serve."""
    database_pool_size: Annotated[int, Field(ge=3, le=200)] = 6
    """Connections of one process; the path itself never uses more than four."""

    stripe_webhook_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """Comma-separated signing secrets of the source `stripe`, each as it stands (`whsec_…`) or `label:whsec_…`."""
    github_webhook_secrets: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    """Comma-separated secrets of the source `github`, each as it was given to the hook; they hold no comma."""
    sources_file: Path | None = None
    """A TOML file of further sources."""

    max_bytes_in_flight: Annotated[int, Field(ge=1_000_000)] = 256_000_000
    """Bodies being read or queued, in bytes, of one process; past it the answer is 503."""
    queue_max_events: Annotated[int, Field(ge=1)] = 10_000
    """Deliveries waiting for a transaction, of one process; past it the answer is 503."""
    body_timeout_seconds: Annotated[float, Field(gt=0, le=120)] = 10.0
    """How long a body may take to arrive; then 408."""

    dedup_horizon_days: Annotated[int, Field(ge=1)] = MINIMUM_HORIZON_DAYS
    """How long the ledger remembers an event by its key; older events are `expired`, never applied."""
    payload_retention_days: Annotated[int, Field(ge=1)] = MINIMUM_HORIZON_DAYS
    """How long raw bodies are kept."""
    allow_short_horizon: bool = False
    """Accept a horizon or a retention shorter than the providers' own windows."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    @field_validator("stripe_webhook_secrets", "github_webhook_secrets", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @model_validator(mode="after")
    def _horizon_covers_the_providers(self) -> Self:
        if self.allow_short_horizon:
            return self
        if self.dedup_horizon_days < MINIMUM_HORIZON_DAYS:
            message = (
                f"DEDUP_HORIZON_DAYS is {self.dedup_horizon_days}, but an event can come back after 30 days: "
                f"use at least {MINIMUM_HORIZON_DAYS}, or set ALLOW_SHORT_HORIZON=true"
            )
            raise ValueError(message)
        if self.payload_retention_days < self.dedup_horizon_days:
            message = (
                f"PAYLOAD_RETENTION_DAYS ({self.payload_retention_days}) is shorter than DEDUP_HORIZON_DAYS "
                f"({self.dedup_horizon_days}): raise it, or set ALLOW_SHORT_HORIZON=true"
            )
            raise ValueError(message)
        return self
