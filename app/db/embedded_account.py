"""How root runs PostgreSQL, which refuses to be run by root: as another user, and changing no mode of any folder."""

import contextlib
import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.db.embedded_binaries import Binaries
from app.errors import ConfigurationError

ACCOUNTS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root; root runs it as the first of these that exists."""
OPEN_FOLDER = Path("/var/lib/oncehook")
"""Where binaries that lie in a closed folder, such as /root, are copied to so that those accounts can run them."""


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int


def account_for(data: Path) -> Account | None:
    """Whom root lets the server run as, the owner of an existing cluster first; None: we are not root."""
    if os.geteuid() != 0:
        return None
    if data.exists():
        owner = data.stat()
        if owner.st_uid == 0:
            raise ConfigurationError(
                f"{data} belongs to root, as whom PostgreSQL does not run. Give it away: chown -R {ACCOUNTS[0]} {data}"
            )
        return Account(owner.st_uid, owner.st_gid or owner.st_uid)
    for name in ACCOUNTS:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(f"PostgreSQL does not run as root, and the users {' and '.join(ACCOUNTS)} do not exist")


@contextlib.contextmanager
def as_seen_by(account: Account | None, folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A path of `folder`, and the descriptors to pass on with it, that works below folders closed to the account.

    Opened by root, the descriptor leads into `folder` without passing its parents, so that no mode of theirs has to be
    changed. PostgreSQL makes the data folder its working directory and uses no other path into it.
    """
    if account is None or not Path("/proc/self/fd").exists():
        yield str(folder), ()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}", (descriptor,)
    finally:
        os.close(descriptor)


def reachable(binaries: Binaries, account: Account | None) -> Binaries:
    """The binaries, or a copy of them where the account can run them."""
    if account is None or _runs(binaries, account):
        return binaries
    prefix = binaries.bindir.parent
    digest = hashlib.sha256(os.fsencode(prefix)).hexdigest()[:8]
    target = OPEN_FOLDER / f"postgresql-{binaries.version}-{digest}"
    bindir = target / prefix.parent.name / prefix.name / binaries.bindir.name
    copy = Binaries(bindir=bindir, major=binaries.major, version=binaries.version)
    try:
        if not target.exists():
            _copy_open(prefix, target)
    except OSError as error:
        raise ConfigurationError(
            f"{binaries.bindir} is closed to the user that runs PostgreSQL, and copying it to {target} failed: {error}"
        ) from error
    if not _runs(copy, account):
        shutil.rmtree(target, ignore_errors=True)
        raise ConfigurationError(
            f"User {account.uid} can run PostgreSQL neither from {binaries.bindir} nor from a copy"
        )
    return copy


def _runs(binaries: Binaries, account: Account) -> bool:
    for program in ("postgres", "initdb"):  # which need different libraries
        try:
            done = subprocess.run(
                [str(binaries.bindir / program), "--version"],
                user=account.uid,
                group=account.gid,
                extra_groups=[],
                cwd="/",
                check=False,
                capture_output=True,
            )
        except OSError:
            return False
        if done.returncode != 0:
            return False
    return True


def _copy_open(prefix: Path, target: Path) -> None:
    """Copy an installation, readable for all; whoever renames first wins."""
    if not OPEN_FOLDER.exists():
        OPEN_FOLDER.mkdir(parents=True)
        OPEN_FOLDER.chmod(0o755)
    partial = Path(tempfile.mkdtemp(dir=OPEN_FOLDER, prefix=".partial-"))
    package = prefix.parent
    libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps them, found by a path relative to bin
    folders = [prefix / name for name in ("bin", "lib", "share")]
    for folder in (*folders, libraries):
        if folder.is_dir():
            shutil.copytree(folder, partial / folder.relative_to(package.parent), symlinks=True)
    for path in (partial, *partial.rglob("*")):
        if not path.is_symlink():
            readable = path.stat().st_mode & 0o500
            path.chmod(0o200 | readable | readable >> 3 | readable >> 6)
    with contextlib.suppress(OSError):
        partial.rename(target)
    shutil.rmtree(partial, ignore_errors=True)
