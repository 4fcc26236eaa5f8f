"""Read a plain libpq URL, as operators paste it, into what asyncpg takes."""

from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from app.errors import ConfigurationError

_SCHEMES = ("postgresql", "postgres", "postgresql+asyncpg")
_BY_ASYNCPG = frozenset(
    {
        "host", "port", "user", "password", "dbname", "database", "passfile", "service", "sslmode", "sslcert", "sslkey",
        "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation", "ssl_min_protocol_version",
        "ssl_max_protocol_version", "target_session_attrs", "krbsrvname", "gsslib",
    }
)  # fmt: skip
"""libpq parameters that asyncpg itself reads from the URL."""
_SERVER_SETTINGS = frozenset({"application_name", "search_path", "client_encoding", "TimeZone", "timezone", "DateStyle"})
_WITHOUT_EFFECT = frozenset(
    {
        "gssencmode", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
        "fallback_application_name", "sslcompression", "sslsni", "load_balance_hosts",
    }
)  # fmt: skip
"""libpq parameters that asyncpg lacks and that can be left out without harm to safety."""


def dsn_and_arguments(url: str) -> tuple[str, dict[str, Any]]:
    """What to call `asyncpg.connect(dsn, **arguments)` with.

    Raises:
        ConfigurationError: another database, a parameter that cannot be honoured, or no URL at all. The message never
            holds the URL's password.
    """
    try:
        parts = urlsplit(url)
        parameters = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        message = "DATABASE_URL is no URL: write postgresql://user:password@host:5432/database"
        raise ConfigurationError(message) from error
    if parts.scheme not in _SCHEMES:
        message = f"DATABASE_URL must begin with postgresql://, not with {parts.scheme or 'nothing'}:"
        raise ConfigurationError(message)
    kept: list[tuple[str, str]] = []
    arguments: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for name, value in parameters:
        if name in _BY_ASYNCPG:
            kept.append((name, value))
        elif name in _SERVER_SETTINGS:
            settings[name] = value
        elif name == "options":
            settings |= _options(value)
        elif name == "connect_timeout":
            arguments["timeout"] = _seconds(value)
        elif name == "channel_binding":
            _refuse_required(name, value)
        elif name not in _WITHOUT_EFFECT:
            message = f"DATABASE_URL has the parameter {name!r}, which is not known here"
            raise ConfigurationError(message)
    if settings:
        arguments["server_settings"] = settings
    query = urlencode(kept, quote_via=quote)
    return f"postgresql://{parts.netloc}{parts.path}{'?' + query if query else ''}", arguments


def _options(value: str) -> dict[str, str]:
    """The settings of `options=-c name=value …` (libpq also takes `-cname=value` and `--name=value`)."""
    settings: dict[str, str] = {}
    words = iter(value.split())
    for word in words:
        pair = next(words, "") if word == "-c" else word.removeprefix("-c").removeprefix("--")
        name, equals, setting = pair.partition("=")
        if not equals or not name:
            message = "DATABASE_URL: options must be a list of `-c name=value`"
            raise ConfigurationError(message)
        settings[name] = setting
    return settings


def _seconds(value: str) -> float:
    if not value.isdigit():
        message = "DATABASE_URL: connect_timeout must be a whole number of seconds"
        raise ConfigurationError(message)
    return max(float(value), 2.0)


def _refuse_required(name: str, value: str) -> None:
    if value == "require":
        message = f"DATABASE_URL asks for {name}=require, which cannot be promised here; use sslmode=verify-full"
        raise ConfigurationError(message)
