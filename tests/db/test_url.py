import contextlib
import os
import pwd
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from app.db import embedded
from app.db.url import dsn_and_arguments
from app.errors import ConfigurationError

DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
PASSWORD = "p@ss/w:rd#?+%&ä"
ENCODED = quote(PASSWORD, safe="")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def server_on_tcp(root: Path, port: int, **options: str) -> Iterator[Path]:
    settings = {"listen_addresses": "127.0.0.1", "port": str(port)} | options
    bindir = DEBIAN_15 if "ssl" in options else None
    with embedded.running(root, bindir=bindir, durable=False, settings=settings) as server:
        sql = f"CREATE ROLE ada LOGIN PASSWORD '{PASSWORD}'; CREATE DATABASE \"my shop\" OWNER ada; "
        sql += "CREATE ROLE bob LOGIN PASSWORD 'plain'"
        psql = str(server.binaries.bindir / "psql")
        for statement in sql.split("; "):
            subprocess.run([psql, "-qXd", server.url, "-c", statement], check=True)
        yield root / f"pg{server.binaries.major}"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Path]:
    """The folder of the socket of a server without TLS, which also listens on `port`."""
    with server_on_tcp(tmp_path_factory.mktemp("plain"), port) as data:
        yield data


@pytest.fixture(autouse=True)
def no_variables_of_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PG"):
            monkeypatch.delenv(name)


async def ask(url: str, question: str = "SELECT current_user || '@' || current_database()") -> object:
    dsn, arguments = dsn_and_arguments(url)
    connection = await asyncpg.connect(dsn, **arguments)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:{password}@127.0.0.1:{port}/my%20shop",
        "postgres://ada:{password}@127.0.0.1:{port}/my%20shop",
        "postgresql+asyncpg://ada:{password}@127.0.0.1:{port}/my%20shop",
        "postgresql://ada:{password}@127.0.0.1:{port}/my%20shop\n",
        "postgresql://127.0.0.1:{port}/my%20shop?user=ada&password={password}",
        "postgresql://nobody:wrong@nowhere:1/other?host=127.0.0.1&port={port}&dbname=my%20shop&user=ada&password={password}",
        "postgresql://ada:{password}@127.0.0.1:{closed},127.0.0.1:{port}/my%20shop",
        "postgresql://ada:{password}@/my%20shop?host=127.0.0.1,127.0.0.1&port={closed},{port}",
        "postgresql://ada:{password}@127.0.0.1:{port}/my%20shop?target_session_attrs=read-write&connect_timeout=0",
        "postgresql://ada:{password}@127.0.0.1:{port}/my%20shop?gssencmode=prefer&channel_binding=prefer&keepalives=1",
        "postgresql://ada:{password}@127.0.0.1:{port}/my%20shop?sslmode=disable",
        "postgresql://ada:{password}@127.0.0.1:{port}/my%20shop?sslmode=allow",
        "postgresql://ada:{password}@127.0.0.1:{port}/my%20shop?sslmode=prefer",
        "postgresql://ada@/my%20shop?host={folder}&port={port}",
        "postgresql://ada@{folder}:{port}/my%20shop",
        "postgresql://ada@:{port}/my%20shop?host={folder}",
        "postgresql://ada@/?host={folder}&port={port}&dbname=my%20shop",
        "postgresql://ada@/my%20shop?host={folder}&port={port}&sslmode=require",
    ],
)
async def test_a_url_leads_where_libpq_would_go(url: str, folder: Path, port: int) -> None:
    url = url.format(password=ENCODED, port=port, closed=free_port(), folder=quote(str(folder), safe=""))
    assert await ask(url) == "ada@my shop"


def test_a_password_may_hold_what_only_other_parts_of_a_url_give_a_meaning() -> None:
    dsn, arguments = dsn_and_arguments("postgresql://ada:a?b#c+d:e@host/db?user=a+b")
    assert arguments["password"] == "a?b#c+d:e"
    assert arguments["user"] == "a+b"
    assert dsn == "postgresql://?"


async def test_what_the_url_leaves_out_comes_from_the_environment(
    folder: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", str(folder))
    monkeypatch.setenv("PGPORT", str(port))
    monkeypatch.setenv("PGUSER", "ada")
    assert await ask("postgresql:///my%20shop") == "ada@my shop"


async def test_the_password_may_come_from_a_password_file(folder: Path, port: int, tmp_path: Path) -> None:
    passfile = tmp_path / "passwords"
    passfile.write_text("*:*:*:bob:plain")
    passfile.chmod(0o600)
    url = f"postgresql://bob@127.0.0.1:{port}/my%20shop?passfile={quote(str(passfile))}"
    assert await ask(url) == "bob@my shop"


async def test_a_wrong_password_is_refused(folder: Path, port: int) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await ask(f"postgresql://ada:wrong@127.0.0.1:{port}/my%20shop")


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ("application_name=shop+receiver%201", "shop+receiver 1"),
        ("fallback_application_name=receiver", "receiver"),
        ("fallback_application_name=receiver&application_name=shop", "shop"),
        ("application_name=shop&fallback_application_name=receiver", "shop"),
    ],
)
async def test_the_server_sees_the_application_name(folder: Path, port: int, parameters: str, name: str) -> None:
    url = f"postgresql://ada:{ENCODED}@127.0.0.1:{port}/my%20shop?{parameters}"
    assert await ask(url, "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()") == name


async def test_options_set_settings_of_the_server(folder: Path, port: int) -> None:
    options = quote("-c datestyle=SQL,\\ DMY --work_mem=7MB -cstatement_timeout=1234")
    url = f"postgresql://ada@/my%20shop?host={folder}&port={port}&options={options}"
    names = "'datestyle', 'work_mem', 'statement_timeout'"
    question = f"SELECT string_agg(current_setting(name), '|' ORDER BY name) FROM unnest(ARRAY[{names}]) AS name"
    assert await ask(url, question) == "SQL, DMY|1234ms|7MB"


async def test_a_pool_of_sqlalchemy_works_with_the_arguments(folder: Path, port: int) -> None:
    dsn, arguments = dsn_and_arguments(f"postgresql://ada:{ENCODED}@127.0.0.1:{port}/my%20shop")

    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(dsn, **arguments)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT current_user")) == "ada"
    await engine.dispose()


@pytest.mark.parametrize("mode", ["require", "verify-ca&sslrootcert={ca}", "verify-full&sslrootcert={ca}"])
async def test_tls_that_is_required_is_not_done_without(folder: Path, port: int, tmp_path: Path, mode: str) -> None:
    _, ca = certificate(tmp_path)
    mode = mode.format(ca=ca)
    with pytest.raises(ConnectionError, match="rejected SSL upgrade"):
        await ask(f"postgresql://ada:{ENCODED}@127.0.0.1:{port}/my%20shop?sslmode={mode}")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A key and its self-signed certificate for the name `localhost`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, cert = folder / "server.key", folder / "server.crt"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return key, cert


@pytest.mark.skipif(not DEBIAN_15.exists(), reason="needs a PostgreSQL with TLS: Debian's version 15")
async def test_tls_proves_as_much_as_sslmode_asks_for(tmp_path: Path) -> None:
    port = free_port()
    key, cert = certificate(tmp_path)
    if os.geteuid() == 0:
        # The server's user cannot enter the folder of the certificate, so it is put beside the server's own files.
        owner = pwd.getpwnam("postgres")
        with embedded.running(tmp_path / "data", bindir=DEBIAN_15, durable=False):
            pass
        for name in (key, cert):
            shutil.copy(name, tmp_path / "data" / "pg15")
            os.chown(tmp_path / "data" / "pg15" / name.name, owner.pw_uid, owner.pw_gid)
        (tmp_path / "data" / "pg15" / key.name).chmod(0o600)
        paths = {"ssl_cert_file": cert.name, "ssl_key_file": key.name}
    else:
        paths = {"ssl_cert_file": str(cert), "ssl_key_file": str(key)}
    with server_on_tcp(tmp_path / "data", port, ssl="on", **paths):
        url = f"postgresql://ada:{ENCODED}@{{host}}:{port}/my%20shop?{{parameters}}"
        encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        for host, parameters, expected in (
            ("127.0.0.1", "", True),
            ("127.0.0.1", "sslmode=disable", False),
            ("127.0.0.1", "sslmode=allow", False),
            ("127.0.0.1", "sslmode=require", True),
            ("127.0.0.1", "ssl=true", True),
            ("127.0.0.1", f"sslmode=verify-ca&sslrootcert={cert}", True),
            ("localhost", f"sslmode=verify-full&sslrootcert={cert}", True),
        ):
            assert await ask(url.format(host=host, parameters=parameters), encrypted) is expected, parameters
        for host, parameters in (
            ("127.0.0.1", f"sslmode=verify-full&sslrootcert={cert}"),
            ("localhost", "sslrootcert=system"),
        ):
            with pytest.raises(ssl.SSLCertVerificationError):
                await ask(url.format(host=host, parameters=parameters))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://ada:hunter2@h/d", r"begins with mysql://"),
        ("postgresql+psycopg://ada:hunter2@h/d", r"begins with postgresql\+psycopg://"),
        ("host=h password=hunter2", "has to begin with postgresql://"),
        ("host=h password=hunter2 x=a://b", "has to begin with postgresql://"),
        ("", "has to begin with postgresql://"),
        ("postgresql://ada:hunter2/@h/d", "port"),
        ("postgresql://ada:p@hunter2@h/d", "host part"),
        ("postgresql://ada:100%hunter2@h/d", "plain % as %25"),
        ("postgresql://ada:hunter2%ff@h/d", "not UTF-8"),
        ("postgresql://ada:hunter2@h:http/d", "port"),
        ("postgresql://ada:hunter2@h:70000/d", "port"),
        ("postgresql://ada:hunter2@h1,,h2/d", "empty host"),
        ("postgresql://ada:hunter2@h1,h2,h3/d?port=1,2", "2 ports for 3 hosts"),
        ("postgresql://ada:hunter2@h/d?sslmode", "name=value"),
        ("postgresql://ada:hunter2@h/d?sslmode=on", "sslmode has to be one of disable, allow"),
        ("postgresql://ada:hunter2@h/d?sslmode=require&sslmode=disable", "sslmode twice"),
        ("postgresql://ada:hunter2@h/d?sslrootcert=/nowhere/ca.crt", "sslrootcert names a file.*: /nowhere/ca.crt"),
        ("postgresql://ada:hunter2@h/d?sslmode=require&sslrootcert=system", "needs sslmode=verify-full"),
        (
            "postgresql://ada:hunter2@h/d?sslrootcert=system&ssl_min_protocol_version=TLSv1.3",
            "ssl_min_protocol_version",
        ),
        ("postgresql://ada:hunter2@h/d?sslrootcert=system&sslcert=/dev/null", "sslcert and sslkey cannot be used"),
        ("postgresql://ada:hunter2@h/d?connect_timeout=soon", "connect_timeout"),
        ("postgresql://ada:hunter2@h/d?channel_binding=require", "channel_binding.*disable or prefer"),
        ("postgresql://ada:hunter2@h/d?gssencmode=require", "gssencmode"),
        ("postgresql://ada:hunter2@h/d?client_encoding=latin1", "client_encoding"),
        ("postgresql://ada:hunter2@h/d?hostaddr=10.0.0.1", "hostaddr"),
        ("postgresql://ada:hunter2@h/d?search_path=shop", "search_path.*options=-c"),
    ],
)
def test_what_cannot_be_honoured_is_refused_without_showing_the_password(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refusal:
        dsn_and_arguments(url)
    assert "hunter2" not in str(refusal.value)
    assert refusal.value.__context__ is None or "hunter2" not in str(refusal.value.__context__)


def test_the_time_to_connect_is_the_urls() -> None:
    assert dsn_and_arguments("postgresql://h/d?connect_timeout=7")[1]["timeout"] == 7.0
    assert dsn_and_arguments("postgresql://h/d?connect_timeout=0")[1]["timeout"] is None
    assert "timeout" not in dsn_and_arguments("postgresql://h/d")[1]
