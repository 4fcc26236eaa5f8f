import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.db import embedded, embedded_account, embedded_binaries
from app.db.embedded_binaries import find_binaries
from app.errors import ConfigurationError

ROOT = Path(__file__).parents[2]
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
HOLDER = """
import sys
from pathlib import Path
from app.db.embedded import running
with running(Path(sys.argv[1]), bindir=Path(sys.argv[2]), durable=sys.argv[3] == "durable") as server:
    print(server.url, server.owned, flush=True)
    sys.stdin.read()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
with_15 = pytest.mark.skipif(not DEBIAN_15.exists(), reason="needs a second major version: Debian's PostgreSQL 15")

BINARIES = find_binaries(None)
NAME = f"pg{BINARIES.major}"


def sql(url: str, statement: str) -> str:
    command = [str(BINARIES.bindir / "psql"), "-qXAtd", url, "-c", statement]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def postmaster_of(root: Path) -> int:
    return int((root / NAME / "postmaster.pid").read_text().splitlines()[0])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def state_of(pid: int) -> str:
    """The letter of `ps`: T is stopped, Z has ended and only waits to be collected; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return ""


def runs(pid: int) -> bool:
    return state_of(pid) not in {"", "Z"}


def log_of(root: Path) -> str:
    return (root / f"{NAME}.log").read_text()


@contextlib.contextmanager
def holder(
    root: Path, *, durable: bool = False, python: str = sys.executable, user: str | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs, or shares, the server on `root` until its standard input closes."""
    command = [python, "-c", HOLDER, str(root), str(BINARIES.bindir), "durable" if durable else "fast"]
    group = None if user is None else pwd.getpwnam(user).pw_gid
    with subprocess.Popen(
        command,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
        group=group,
        extra_groups=None if user is None else [],
    ) as process:
        yield process


def python_for(user: str) -> str:
    """A Python that `user` can run on our code; that of the tests may lie in a closed folder."""
    command = ["-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from app.errors import ConfigurationError"]
    for python in (sys.executable, "/usr/local/bin/python3", "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            if not subprocess.run([python, *command], user=user, extra_groups=[], check=False).returncode:
                return python
    pytest.skip(f"{user} can run no Python on the folder of the project")


def answer_of(process: subprocess.Popen[str]) -> tuple[str, bool]:
    assert process.stdout is not None
    url, owned = process.stdout.readline().split()
    return url, owned == "True"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@on_linux
def test_rows_outlive_the_server_which_stops_with_its_block(tmp_path: Path) -> None:
    with embedded.running(tmp_path) as server:
        assert server.owned
        sql(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        pid = postmaster_of(tmp_path)
        assert sql(server.url, "SHOW fsync") == "on"
    assert not runs(pid)
    assert log_of(tmp_path).rstrip().endswith("database system is shut down")
    with embedded.running(tmp_path) as server:
        assert sql(server.url, "SELECT answer FROM kept") == "42"


@on_linux
def test_it_listens_on_a_socket_that_others_cannot_reach_and_knows_none_of_our_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIPE_WEBHOOK_SECRETS", "whsec_hush")
    monkeypatch.setenv("PGPORT", "1")
    with embedded.running(tmp_path, durable=False, settings={"timezone": "Asia/Tokyo"}) as server:
        assert sql(server.url, "SHOW listen_addresses") == ""
        assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o700
        assert "whsec_hush" not in Path(f"/proc/{postmaster_of(tmp_path)}/environ").read_text()
        assert sql(server.url, "SHOW timezone") == "Asia/Tokyo"
        assert sql(server.url, "SHOW fsync") == "off"
        assert sql(server.url, "SHOW server_encoding") == "UTF8"


@as_root
@on_linux
def test_root_runs_it_as_another_user_below_closed_folders_without_opening_them(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    root = closed / "data"
    modes = {folder: folder.stat().st_mode for folder in (tmp_path, closed, Path(tempfile.gettempdir()))}
    for _ in range(2):
        with embedded.running(root, durable=False) as server:
            assert sql(server.url, "SELECT 1") == "1"
            assert Path(f"/proc/{postmaster_of(root)}").stat().st_uid in {
                pwd.getpwnam(name).pw_uid for name in embedded_account.ACCOUNTS
            }
    assert {folder: folder.stat().st_mode for folder in modes} == modes


@as_root
@on_linux
@with_15
def test_root_runs_an_older_version_below_closed_folders_too(tmp_path: Path) -> None:
    with embedded.running(tmp_path, bindir=DEBIAN_15, durable=False) as server:
        assert sql(server.url, "SHOW server_version_num").startswith("15")


@as_root
def test_root_copies_binaries_that_lie_in_a_closed_folder_once(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_account, "OPEN_FOLDER", open_folder / "copies")
    package = BINARIES.bindir.parents[1]
    libraries = package.with_name(f"{package.name}.libs")
    prefix = tmp_path / package.name / "installation"
    shutil.copytree(BINARIES.bindir.parent, prefix, symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, tmp_path / libraries.name)
    made = []
    for _ in range(2):
        with embedded.running(tmp_path / "data", bindir=prefix / "bin", durable=False) as server:
            executable = Path(f"/proc/{postmaster_of(tmp_path / 'data')}/exe").readlink()
            assert executable.is_relative_to(open_folder / "copies")
            assert server.binaries.bindir == prefix / "bin"
        made.append([(path, path.stat().st_ino) for path in (open_folder / "copies").iterdir()])
    assert len(made[0]) == 1
    assert made[0] == made[1]


@as_root
def test_binaries_that_can_neither_be_run_nor_copied_are_named(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (open_folder / "file").touch()
    monkeypatch.setattr(embedded_account, "OPEN_FOLDER", open_folder / "file" / "copies")
    monkeypatch.setattr(embedded_account, "_runs", lambda *_: False)
    with pytest.raises(ConfigurationError, match=r"is closed to the user that runs PostgreSQL, and copying it"):
        embedded.running(tmp_path, durable=False).__enter__()
    monkeypatch.setattr(embedded_account, "OPEN_FOLDER", tmp_path)
    monkeypatch.setattr(embedded_account, "_copy_open", lambda *_: None)
    with pytest.raises(ConfigurationError, match="can run PostgreSQL neither from"):
        embedded.running(tmp_path, durable=False).__enter__()


@as_root
def test_an_ordinary_user_runs_it_and_root_runs_it_as_that_user(open_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    python = python_for("nobody")
    os.chown(open_folder, nobody.pw_uid, nobody.pw_gid)
    with holder(open_folder, python=python, user="nobody") as process:
        url, owned = answer_of(process)
        assert owned
        sql(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    with embedded.running(open_folder, durable=False) as server:
        assert sql(server.url, "SELECT answer FROM kept") == "42"
        assert (open_folder / NAME / "postmaster.pid").stat().st_uid == nobody.pw_uid


@as_root
def test_a_cluster_that_belongs_to_root_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(ConfigurationError, match="chown -R"):
        embedded.running(tmp_path).__enter__()


@on_linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_shuts_down_cleanly_when_its_process_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    with holder(tmp_path) as process:
        answer_of(process)
        pid = postmaster_of(tmp_path)
        process.send_signal(number)
    eventually(lambda: not runs(pid))
    assert log_of(tmp_path).rstrip().endswith("database system is shut down")


@on_linux
def test_it_shuts_down_cleanly_when_its_keeper_is_killed(tmp_path: Path) -> None:
    with embedded.running(tmp_path, durable=False):
        pid = postmaster_of(tmp_path)
        os.kill(parent_of(pid), signal.SIGKILL)
        eventually(lambda: not runs(pid))
    assert log_of(tmp_path).rstrip().endswith("database system is shut down")


@on_linux
def test_it_recovers_when_everything_is_killed(tmp_path: Path) -> None:
    with holder(tmp_path, durable=True) as process:
        url, _ = answer_of(process)
        sql(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        pid = postmaster_of(tmp_path)
        for victim in (pid, parent_of(pid), process.pid):
            os.kill(victim, signal.SIGKILL)
    with embedded.running(tmp_path, durable=False) as server:
        assert server.owned
        assert sql(server.url, "SELECT answer FROM kept") == "42"
    assert "was not properly shut down" in log_of(tmp_path)


@on_linux
def test_a_start_waits_for_the_server_of_a_process_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holder(tmp_path) as process:
        url, _ = answer_of(process)
        pid = postmaster_of(tmp_path)
        keeper = parent_of(pid)
        os.kill(keeper, signal.SIGSTOP)
        threads = [int(thread.name) for thread in Path(f"/proc/{keeper}/task").iterdir()]
        eventually(lambda: all(state_of(thread) == "T" for thread in threads))
        process.kill()
    try:
        with monkeypatch.context() as hurry:
            hurry.setattr(embedded, "START_SECONDS", 0.2)
            with pytest.raises(ConfigurationError, match="has not ended"):
                embedded.running(tmp_path, durable=False).__enter__()
        assert sql(url, "SELECT 1") == "1"
    finally:
        os.kill(keeper, signal.SIGCONT)
    with embedded.running(tmp_path, durable=False) as server, embedded.running(tmp_path, durable=False) as sharer:
        assert postmaster_of(tmp_path) != pid
        assert (server.owned, sharer.owned) == (True, False)
        assert sql(sharer.url, "SELECT 1") == "1"


@on_linux
def test_a_left_over_pid_that_now_belongs_to_another_program_does_not_stop_it(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        answer_of(process)
        pid = postmaster_of(tmp_path)
        owner = Path(f"/proc/{pid}").stat().st_uid
        for victim in (pid, parent_of(pid), process.pid):
            os.kill(victim, signal.SIGKILL)
        eventually(lambda: not runs(pid))
    user = owner if os.geteuid() == 0 else None
    with subprocess.Popen([shutil.which("sleep") or "sleep", "60"], user=user, cwd="/") as impostor:
        for name in ("postmaster.pid", ".s.PGSQL.5432.lock"):
            file = tmp_path / NAME / name
            file.write_text(file.read_text().replace(str(pid), str(impostor.pid), 1))
        try:
            with embedded.running(tmp_path, durable=False) as server:
                assert sql(server.url, "SELECT 1") == "1"
        finally:
            impostor.kill()


def test_another_process_shares_the_server_and_does_not_stop_it(tmp_path: Path) -> None:
    with embedded.running(tmp_path, durable=False) as server:
        with holder(tmp_path) as process:
            assert answer_of(process) == (server.url, False)
        with embedded.running(tmp_path, durable=False) as again:
            assert not again.owned
        assert sql(server.url, "SELECT 1") == "1"


def test_of_processes_that_start_at_once_one_makes_the_cluster_and_all_use_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(holder(tmp_path)) for _ in range(4)]
        answers = [answer_of(process) for process in processes]
        assert sorted(owned for _, owned in answers) == [False, False, False, True]
        assert len({sql(url, "SELECT system_identifier FROM pg_control_system()") for url, _ in answers}) == 1


def test_two_folders_have_two_servers(tmp_path: Path) -> None:
    with (
        embedded.running(tmp_path / "a", durable=False) as one,
        embedded.running(tmp_path / "b", durable=False) as other,
    ):
        question = "SELECT system_identifier FROM pg_control_system()"
        assert sql(one.url, question) != sql(other.url, question)


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        servers: list[embedded.Server] = []
        thread = threading.Thread(
            target=lambda: servers.append(stack.enter_context(embedded.running(tmp_path, durable=False)))
        )
        thread.start()
        thread.join()
        assert sql(servers[0].url, "SELECT 1") == "1"


def test_a_process_that_holds_the_folder_without_answering_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "START_SECONDS", 0.2)
    for name, message in ((f"{NAME}.lock", "Stop that process"), (f"{NAME}.log", "has not ended")):
        with (tmp_path / name).open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(ConfigurationError, match=message):
                embedded.running(tmp_path).__enter__()


def test_a_path_too_long_for_a_socket_is_reached_by_a_short_link(tmp_path: Path) -> None:
    root = tmp_path / ("long" * 20) / ("longer" * 20)
    with embedded.running(root, durable=False) as server:
        assert sql(server.url, "SELECT 1") == "1"
        links = Path(tempfile.gettempdir()) / f"oncehook-{os.geteuid()}"
        assert stat.S_IMODE(links.stat().st_mode) == 0o700
        link = next(link for link in links.iterdir() if link.readlink() == root / NAME)
    assert not link.is_symlink()


def test_a_folder_for_links_that_others_can_write_is_refused(
    tmp_path: Path, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
    (open_folder / f"oncehook-{os.geteuid()}").mkdir()
    with pytest.raises(ConfigurationError, match="yours alone"):
        embedded.running(tmp_path / ("long" * 30)).__enter__()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    with pytest.raises(ConfigurationError, match="set TMPDIR to a shorter path"):
        embedded.running(tmp_path / ("long" * 30)).__enter__()


def test_a_cluster_that_was_interrupted_in_the_making_is_made_again(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.new").mkdir()
    (tmp_path / f"{NAME}.new" / "PG_VERSION").write_text(f"{BINARIES.major}\n")
    with embedded.running(tmp_path, durable=False) as server:
        assert sql(server.url, "SELECT 1") == "1"
    assert not (tmp_path / f"{NAME}.new").exists()


def test_a_broken_cluster_is_an_error_with_the_end_of_the_log(tmp_path: Path) -> None:
    with embedded.running(tmp_path, durable=False):
        pass
    (tmp_path / NAME / "global" / "pg_control").unlink()
    start = time.monotonic()
    with pytest.raises(ConfigurationError, match=r"did not start on .*\n(.*\n)*.*pg_control"):
        embedded.running(tmp_path, durable=False).__enter__()
    assert time.monotonic() - start < 10


def test_a_cluster_that_cannot_be_made_is_an_error_with_what_initdb_said(tmp_path: Path, open_folder: Path) -> None:
    for name in ("postgres", "pg_isready"):
        (open_folder / name).symlink_to(BINARIES.bindir / name)
    (open_folder / "initdb").write_text("#!/bin/sh\n[ $1 = --version ] || { echo no room left; exit 1; }\n")
    (open_folder / "initdb").chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"could not create a cluster in .*\nno room left"):
        embedded.running(tmp_path, bindir=open_folder, durable=False).__enter__()


def test_files_in_the_way_of_a_new_cluster_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "notes.txt").touch()
    if os.geteuid() == 0:
        os.chown(tmp_path / NAME, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(ConfigurationError, match="move it aside"):
        embedded.running(tmp_path, durable=False).__enter__()
    assert (tmp_path / NAME / "notes.txt").exists()


@with_15
def test_a_cluster_of_another_version_is_refused_and_opens_with_its_own(tmp_path: Path) -> None:
    with embedded.running(tmp_path, bindir=DEBIAN_15, durable=False) as server:
        sql(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
    with pytest.raises(
        ConfigurationError, match=rf"pg15 is a database of PostgreSQL 15, .*{BINARIES.major}.*PG_BINDIR"
    ):
        embedded.running(tmp_path, durable=False).__enter__()
    assert not (tmp_path / NAME).exists()
    with embedded.running(tmp_path, bindir=DEBIAN_15, durable=False) as server:
        assert sql(server.url, "SELECT answer FROM kept") == "42"


def test_a_folder_whose_name_is_of_another_version_than_its_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "PG_VERSION").write_text("14\n")
    with pytest.raises(ConfigurationError, match="is a database of PostgreSQL 14"):
        embedded.running(tmp_path).__enter__()


def test_a_data_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"The data folder .* cannot be used"):
        embedded.running(tmp_path / "file" / "data").__enter__()


def test_a_log_that_has_grown_too_long_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOG_LIMIT_BYTES", 10)
    (tmp_path / f"{NAME}.log").write_text("what was written long ago\n")
    with embedded.running(tmp_path, durable=False):
        assert "long ago" not in log_of(tmp_path)


def test_the_keeper_answers_like_a_shell() -> None:
    for command, status in (
        (["/nowhere/postgres"], 127),
        (["/bin/sh", "-c", "kill -9 $$"], 137),
        (["/bin/sh", "-c", "exit 3"], 3),
    ):
        keeper = [sys.executable, str(embedded.KEEPER), "-", "-", *command]
        with subprocess.Popen(keeper, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.wait() == status


def pretend_binaries(folder: Path, answer: str) -> Path:
    for name in ("postgres", "initdb", "pg_isready"):
        (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("echo 'postgres (PostgreSQL) 14.9'", r"holds PostgreSQL 14\.9, which is older than 15"),
        ("echo library missing >&2; exit 127", "does not tell its version: library missing"),
    ],
)
def test_binaries_that_do_not_serve_are_refused_with_the_reason(tmp_path: Path, answer: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_binaries(pretend_binaries(tmp_path, answer))


def test_binaries_that_cannot_be_run_are_refused(tmp_path: Path) -> None:
    (pretend_binaries(tmp_path, "") / "postgres").chmod(0o644)
    with pytest.raises(ConfigurationError, match="cannot be run: Permission denied"):
        find_binaries(tmp_path)


def test_a_folder_that_is_asked_for_is_not_replaced_by_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not hold PostgreSQL's postgres, initdb, pg_isready"):
        find_binaries(tmp_path)


def test_without_the_wheel_an_installed_version_serves_the_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(embedded_binaries, "INSTALLED", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"none of them is here.*PG_BINDIR"):
        find_binaries(None)
    for major in (9, 15, 16, 17):
        (tmp_path / str(major) / "bin").mkdir(parents=True)
        if major != 17:  # only its client is installed
            pretend_binaries(tmp_path / str(major) / "bin", f"echo 'postgres (PostgreSQL) {major}.1 (Debian)'")
    assert find_binaries(None).version == "16.1"
    other = tmp_path / "other"
    other.mkdir()
    pretend_binaries(other, "echo 'postgres (PostgreSQL) 18beta1'")
    (tmp_path / "pg_config").write_text(f"#!/bin/sh\necho {other}\n")
    (tmp_path / "pg_config").chmod(0o755)
    found = find_binaries(None)
    assert (found.bindir, found.major, found.version) == (other, 18, "18beta1")
