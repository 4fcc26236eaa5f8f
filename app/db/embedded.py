"""A PostgreSQL server of our own for `oncehook dev` and the tests: found, started, shared and stopped, no root needed.

Beside the data folder `pg<major>` lie `pg<major>.log`, the server's output, locked as long as any of its processes
lives, and `pg<major>.lock`, locked by the process that started the server and holding its URL once it answers.
Both locks end with their holders, so nothing that is killed has to be cleaned up after.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

from app.db.embedded_account import Account, account_for, as_seen_by, reachable
from app.db.embedded_binaries import Binaries, find_binaries
from app.errors import ConfigurationError

START_SECONDS = 60.0
"""Crash recovery of a development database is over by then."""
LOG_LIMIT_BYTES = 10_000_000
"""Past this a start empties the log."""
SOCKET_PATH_LIMIT = 103
"""The shortest `sun_path` of the systems we run on (macOS) less its final zero."""
KEEPER = Path(__file__).with_name("embedded_keeper.py")
FAST_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers. `owned`: this process started it, and it stops with this process."""

    url: str
    owned: bool
    binaries: Binaries


@contextlib.contextmanager
def running(
    data_root: Path, *, bindir: Path | None = None, durable: bool = True, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start PostgreSQL on `data_root`/pg<major>, or share the one that another process runs there.

    It listens on a Unix socket inside the data folder, which only its user can enter, unless `settings` says otherwise
    (`listen_addresses`, `port`); over TCP it wants a password. `settings` and `durable` count for who starts it.

    Raises:
        ConfigurationError: no usable binaries, a cluster of another major version, or a server that does not start;
            the message holds the end of its log.
    """
    binaries = find_binaries(bindir)
    data = data_root.absolute() / f"pg{binaries.major}"
    lock_file = data.with_name(f"{data.name}.lock")
    try:
        data_root.mkdir(parents=True, exist_ok=True)
        _refuse_another_major(data, binaries)
        lock = lock_file.open("a+")
    except OSError as error:
        raise ConfigurationError(f"The data folder {data} cannot be used: {error}") from error
    with lock:
        shared = _own_or_share(lock, binaries)
        if shared is not None:
            yield Server(url=shared, owned=False, binaries=binaries)
            return
        configuration = {"listen_addresses": "", "unix_socket_directories": ".", "port": "5432"}
        configuration |= {} if durable else FAST_NOT_DURABLE
        configuration |= settings or {}
        with _socket_folder(data) as host, data.with_name(f"{data.name}.log").open("ab") as log:
            url = f"postgresql://postgres@/postgres?host={quote(str(host))}&port={configuration['port']}"
            _await_the_end_of_an_earlier_server(log, data)
            with _started(binaries, data, configuration, url=url, log=log, sync=durable):
                lock.write(url)
                lock.flush()
                try:
                    yield Server(url=url, owned=True, binaries=binaries)
                finally:
                    lock.truncate(0)  # from here on nobody is to share it


def _refuse_another_major(data: Path, binaries: Binaries) -> None:
    if data.exists():
        found = [data] if (data / "PG_VERSION").exists() else []
    else:
        found = [folder for folder in data.parent.glob("pg*") if re.fullmatch(r"pg\d+", folder.name)]
    for folder in sorted(found):
        version_file = folder / "PG_VERSION"
        major = version_file.read_text().strip() if version_file.exists() else folder.name.removeprefix("pg")
        if major != str(binaries.major):
            raise ConfigurationError(
                f"{folder} is a database of PostgreSQL {major}, but the binaries in {binaries.bindir} are PostgreSQL "
                f"{binaries.major}, which cannot open it. Set PG_BINDIR to the binaries of PostgreSQL {major}; or dump "
                f"it with those, move {folder.name} aside, and restore; or only move it aside to begin anew."
            )


def _own_or_share(lock: IO[str], binaries: Binaries) -> str | None:
    """Lock `lock` and return None, or return the URL of the server of the process that holds the lock."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if _try_lock(lock):
            lock.truncate(0)
            return None
        lock.seek(0)
        url = lock.read()
        if url and _answers(binaries, url):
            return url
        time.sleep(0.03)
    raise ConfigurationError(
        f"Another process holds {lock.name}, but its PostgreSQL does not answer. Stop that process and try again."
    )


def _await_the_end_of_an_earlier_server(log: IO[bytes], data: Path) -> None:
    """Lock the log, which the server inherits: as long as one whose owner was killed is stopping, it holds the lock."""
    deadline = time.monotonic() + START_SECONDS
    while not _try_lock(log):
        if time.monotonic() > deadline:
            raise ConfigurationError(f"An earlier PostgreSQL on {data} has not ended; its log is {log.name}")
        time.sleep(0.03)
    if log.tell() > LOG_LIMIT_BYTES:
        log.truncate(0)


def _try_lock(file: IO[str] | IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _started(
    binaries: Binaries, data: Path, configuration: Mapping[str, str], *, url: str, log: IO[bytes], sync: bool
) -> Iterator[None]:
    account = account_for(data)
    usable = reachable(binaries, account)
    log_start = log.seek(0, os.SEEK_END)
    if not (data / "PG_VERSION").exists():
        _create_cluster(usable, data, account, log=log, sync=sync)
    with as_seen_by(account, data) as (location, descriptors):
        command = [str(usable.bindir / "postgres"), "-D", location]
        for name, value in configuration.items():
            command += ["-c", f"{name}={value}"]
        keeper = _keep(command, account, log=log, descriptors=descriptors, environment=_disowned_pid(data))
    with keeper:  # leaving closes its standard input, which stops the server, and waits for that
        deadline = time.monotonic() + START_SECONDS
        while not _answers(binaries, url):
            if keeper.poll() is not None or time.monotonic() > deadline:
                raise ConfigurationError(f"PostgreSQL did not start on {data}:\n{_tail(log, log_start)}")
            time.sleep(0.03)
        yield


def _create_cluster(binaries: Binaries, data: Path, account: Account | None, *, log: IO[bytes], sync: bool) -> None:
    """Make the cluster under another name and rename it, so that what was interrupted is never taken for a cluster."""
    fresh = data.with_name(f"{data.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    if account is not None:
        os.chown(fresh, account.uid, account.gid)
    log_start = log.seek(0, os.SEEK_END)
    with as_seen_by(account, fresh) as (location, descriptors):
        command = [str(binaries.bindir / "initdb"), "-D", location, "-U", "postgres", "-E", "UTF8", "--locale=C"]
        command += ["--auth-local=trust", "--auth-host=scram-sha-256", "--no-instructions"]
        command += [] if sync else ["--no-sync"]
        with _keep(command, account, log=log, descriptors=descriptors) as keeper:
            status = keeper.wait()
    if status:
        raise ConfigurationError(f"PostgreSQL could not create a cluster in {data}:\n{_tail(log, log_start)}")
    try:
        fresh.rename(data)
    except OSError as error:
        raise ConfigurationError(f"{data} is in the way of a new cluster, move it aside: {error}") from error
    if sync:
        parent = os.open(data.parent, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)


def _keep(
    command: list[str],
    account: Account | None,
    *,
    log: IO[bytes],
    descriptors: tuple[int, ...],
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    identity = ["-", "-"] if account is None else [str(account.uid), str(account.gid)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(KEEPER), *identity, *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd="/",  # the account can enter it
        env=_environment() | dict(environment or {}),
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C is for us: PostgreSQL would take it as an order to stop
    )


def _environment() -> dict[str, str]:
    """What PostgreSQL needs of ours: neither our secrets nor the PG* variables, which would configure it."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "TZ") if name in os.environ}
    return kept | {"LC_ALL": "C"}


def _disowned_pid(data: Path) -> dict[str, str]:
    """Tell PostgreSQL that the pid in a left-over postmaster.pid is not a server's, when this can be seen (Linux).

    After a crash the pid may belong to another program of the same user, or to a zombie that nobody collects, and
    PostgreSQL would refuse to start for good. It takes its grandparent's pid, which pg_ctl names so, for no server.
    Its other check, for backends that still use the old shared memory, stays.
    """
    try:
        pid = (data / "postmaster.pid").read_text().splitlines()[0]
    except (OSError, IndexError):
        return {}
    if not Path("/proc/self").exists():
        return {}
    try:
        if Path(f"/proc/{pid}/cwd").samefile(data):
            return {}
    except OSError:
        pass  # gone, a zombie, or hidden from us
    return {"PG_GRANDPARENT_PID": pid}


def _answers(binaries: Binaries, url: str) -> bool:
    command = [str(binaries.bindir / "pg_isready"), "-q", "-t", "3", "-d", url]
    return subprocess.run(command, env=_environment(), stdin=subprocess.DEVNULL, check=False).returncode == 0


def _tail(log: IO[bytes], start: int) -> str:
    with Path(log.name).open("rb") as file:
        file.seek(start)
        return "\n".join(file.read().decode(errors="replace").splitlines()[-15:])


@contextlib.contextmanager
def _socket_folder(data: Path) -> Iterator[Path]:
    """How clients name the data folder, where the socket is: by a short link if its path is too long for a socket."""
    if _fits_a_socket(data):
        yield data
        return
    folder = Path(tempfile.gettempdir()) / f"oncehook-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    link = folder / hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigurationError(f"{folder} has to be a folder that is yours alone, for PostgreSQL's socket")
    if not _fits_a_socket(link):
        raise ConfigurationError(f"Both {data} and {folder} are too long for a socket: set TMPDIR to a shorter path")
    link.unlink(missing_ok=True)
    link.symlink_to(data)
    try:
        yield link
    finally:
        link.unlink(missing_ok=True)


def _fits_a_socket(folder: Path) -> bool:
    return len(os.fsencode(folder / ".s.PGSQL.65535")) <= SOCKET_PATH_LIMIT
