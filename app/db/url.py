"""What asyncpg is told for a plain `postgresql://` URL: the URL is read by libpq's rules, as psql would read it.

asyncpg 0.32 reads URLs too, but not as libpq does: `?host=`, `?port=`, `?user=` and `?dbname=` lose against what stands
before the `?`, a lone `/` is an empty database name, `+` becomes a space, `#` and `?` end a password, `connect_timeout`
and every word it does not know are sent to the server as settings, and some of its errors quote the password. So only
TLS is left to its reading of a URL, since its arguments have no names for certificates.
"""

import os
import re
import ssl
from typing import Any
from urllib.parse import quote, unquote, urlencode

from app.errors import ConfigurationError

LAST_PORT = 65535
SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
SSL_FILES = ("sslcert", "sslkey", "sslrootcert", "sslcrl")
SSL_PARAMETERS = {
    *SSL_FILES, "ssl", "sslmode", "sslpassword", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version",
}  # fmt: skip
ARGUMENTS = {"user", "password", "passfile", "target_session_attrs", "krbsrvname", "gsslib"}
"""Parameters that asyncpg takes under the same name."""
HARMLESS: dict[str, set[str] | None] = {
    "channel_binding": {"disable", "prefer"},
    "client_encoding": {"auto", "utf8", "utf-8", "unicode"},
    "gssdelegation": {"0"},
    "gssencmode": {"disable", "prefer"},
    "keepalives": None,
    "keepalives_count": None,
    "keepalives_idle": None,
    "keepalives_interval": None,
    "load_balance_hosts": {"disable"},
    "max_protocol_version": None,
    "min_protocol_version": {"3.0"},
    "sslcertmode": {"allow"},
    "sslcompression": {"0"},
    "sslsni": {"1"},
    "tcp_user_timeout": None,
}
"""Parameters that asyncpg lacks, with the values (None: any) under which nothing that was asked for is missing."""

_GRAMMAR = re.compile(
    r"(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?(?P<hosts>[^/?]*)(?:/(?P<dbname>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)
_HOST = re.compile(r"(?:\[(?P<ipv6>[^\[\]@]+)\]|(?P<name>[^:@\[\]]*))(?::(?P<port>[^:@]*))?")


def dsn_and_arguments(url: str) -> tuple[str, dict[str, Any]]:
    """What to call `asyncpg.connect(dsn, **arguments)` with; the secret is among the arguments.

    What the URL leaves out is taken from PGHOST, PGUSER, PGPASSWORD, ~/.pgpass and so on, as by libpq. Unlike there,
    `connect_timeout` is for all hosts together, and it is 60 s by default.

    Raises:
        ConfigurationError: the URL cannot be read, or asks for what asyncpg cannot do. The message shows no value but
            names of parameters and files.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator or not re.fullmatch("[a-z0-9+]+", scheme):
        raise ConfigurationError("DATABASE_URL has to begin with postgresql://")
    if scheme not in {"postgresql", "postgres", "postgresql+asyncpg"}:
        raise ConfigurationError(f"DATABASE_URL begins with {scheme}://, but only postgresql:// is supported")
    parts = _GRAMMAR.fullmatch(rest)
    if parts is None:
        raise ConfigurationError("DATABASE_URL cannot be read: a password's @ : / are written %40 %3A %2F")
    authority = {name: _decoded(parts[name]) for name in ("user", "password", "dbname") if parts[name]}
    hosts, ports = _hosts(parts["hosts"])
    query = _parameters(parts["query"] or "")
    if "host" in query:
        hosts = query.pop("host").split(",")
    if "port" in query:
        ports = query.pop("port").split(",")
    parameters = authority | query
    tls = {name: value for name, value in parameters.items() if name in SSL_PARAMETERS}
    dsn, tls_arguments = _tls(tls)
    others = {name: value for name, value in parameters.items() if name not in SSL_PARAMETERS}
    return dsn, _addresses(hosts, ports) | _arguments(others) | tls_arguments


def _hosts(text: str) -> tuple[list[str], list[str]]:
    hosts, ports = [], []
    for address in text.split(","):
        match = _HOST.fullmatch(address)
        if match is None:
            raise ConfigurationError(
                "The host part of DATABASE_URL cannot be read: it is host or host:port, several are separated by "
                "commas, and in a password before it @ : / are written %40 %3A %2F"
            )
        hosts.append(_decoded(match["ipv6"] or match["name"]))
        ports.append(match["port"] or "")
    return hosts, ports


def _parameters(query: str) -> dict[str, str]:
    """The parameters that have a value; libpq takes an empty one for its default."""
    parameters: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, separator, value = pair.partition("=")
        if not separator:
            raise ConfigurationError("DATABASE_URL has a parameter without a value: write name=value")
        if name in parameters:
            raise ConfigurationError(f"DATABASE_URL has the parameter {name} twice")
        parameters[name] = _decoded(value)
    return {name: value for name, value in parameters.items() if value}


def _decoded(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise ConfigurationError("DATABASE_URL has a % that begins no %XX: write a plain % as %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ConfigurationError("DATABASE_URL has %XX that are not UTF-8") from None


def _addresses(hosts: list[str], ports: list[str]) -> dict[str, Any]:
    """The arguments `host` and `port`; absent where the URL has none."""
    arguments: dict[str, Any] = {}
    if any(hosts):
        if not all(hosts):
            raise ConfigurationError("DATABASE_URL has an empty host among several")
        arguments["host"] = hosts
    if any(ports):
        if not all(port == "" or (port.isdecimal() and 0 < int(port) <= LAST_PORT) for port in ports):
            raise ConfigurationError("DATABASE_URL has a port that is not one of 1 to 65535")
        if len(ports) not in {1, len(hosts)}:
            raise ConfigurationError(f"DATABASE_URL has {len(ports)} ports for {len(hosts)} hosts")
        arguments["port"] = [int(port or 5432) for port in ports]
    return arguments


def _arguments(parameters: dict[str, str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for name, value in parameters.items():
        if name in ARGUMENTS:
            arguments[name] = value
        elif name == "dbname":
            arguments["database"] = value
        elif name in {"application_name", "options"}:  # the server reads `options` itself, as it does for libpq
            settings[name] = value
        elif name == "fallback_application_name":
            settings.setdefault("application_name", parameters.get("application_name", value))
        elif name == "connect_timeout":
            arguments["timeout"] = _seconds(value)
        else:
            _refuse_unless_harmless(name, value)
    if settings:
        arguments["server_settings"] = settings
    return arguments


def _seconds(value: str) -> float | None:
    if not re.fullmatch("-?[0-9]+", value):
        raise ConfigurationError("DATABASE_URL's connect_timeout has to be a whole number of seconds")
    return float(value) if int(value) > 0 else None


def _refuse_unless_harmless(name: str, value: str) -> None:
    if name not in HARMLESS:
        raise ConfigurationError(
            f"DATABASE_URL has the parameter {name}, which is unknown or not supported by asyncpg: remove it. "
            "Settings of the server are written options=-c%20name=value"
        )
    accepted = HARMLESS[name]
    if accepted is not None and value.lower() not in accepted:
        values = " or ".join(sorted(accepted))
        raise ConfigurationError(f"DATABASE_URL's {name} asks for what asyncpg cannot do: remove it, or use {values}")


def _tls(parameters: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """A URL with nothing but the TLS parameters, or a context where asyncpg knows no way to say it."""
    if "ssl" in parameters:  # JDBC's word, which libpq takes too; with a mode as its value it is SQLAlchemy's
        value = parameters.pop("ssl")
        parameters.setdefault("sslmode", "require" if value == "true" else value)
    system = parameters.get("sslrootcert") == "system"
    mode = parameters.get("sslmode", "verify-full" if system else None)
    if mode is not None and mode not in SSL_MODES:
        raise ConfigurationError(f"DATABASE_URL's sslmode has to be one of {', '.join(SSL_MODES)}")
    for name in SSL_FILES:
        path = parameters.get(name)
        if path and not (system and name == "sslrootcert") and mode != "disable" and not os.access(path, os.R_OK):
            raise ConfigurationError(f"DATABASE_URL's {name} names a file that cannot be read: {path}")
    if not system:
        return f"postgresql://?{urlencode(parameters, quote_via=quote)}", {}
    if mode != "verify-full":
        raise ConfigurationError("DATABASE_URL's sslrootcert=system needs sslmode=verify-full, as in libpq")
    return "postgresql://", {"ssl": _context_of_the_system(parameters)}


def _context_of_the_system(parameters: dict[str, str]) -> ssl.SSLContext:
    """`sslrootcert=system`: trust the certificate authorities of the machine."""
    unsupported = sorted(parameters.keys() - {"sslrootcert", "sslmode", "sslcert", "sslkey", "sslpassword"})
    if unsupported:
        raise ConfigurationError(f"DATABASE_URL has sslrootcert=system, with which {unsupported[0]} does not work")
    context = ssl.create_default_context()
    if "sslcert" in parameters:
        try:
            context.load_cert_chain(parameters["sslcert"], parameters.get("sslkey"), parameters.get("sslpassword"))
        except OSError as error:  # SSLError is one
            raise ConfigurationError(f"DATABASE_URL's sslcert and sslkey cannot be used: {error}") from error
    return context
