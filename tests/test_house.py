"""What holds across the repository: documents say what the code says, and the locks install anywhere."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client import Metric

from app import errors, metrics
from app.outcomes import Outcome, Reason
from app.settings import Settings
from app.web.problems import STATUS

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"

NEVER_ANSWERED: Mapping[type[errors.OncehookError], str] = {
    errors.ConfigurationError: "the process does not start",
    errors.ProjectionError: "the delivery is parked and answered with 200",
}


def rows_of(page: Path) -> dict[str, list[str]]:
    """The rows of a page's tables by the code in their first cell, all cells without backquotes."""
    rows: dict[str, list[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, *cells = (cell.strip().strip("`") for cell in line.strip("|").split(" | "))
            assert name not in rows, f"{page.name} has two rows for {name}"
            rows[name] = cells
    return rows


def leaves_of(error: type[errors.OncehookError]) -> Iterator[type[errors.OncehookError]]:
    kinds = [kind for kind in error.__subclasses__() if kind.__module__ == errors.__name__]
    if not kinds:
        yield error
    for kind in kinds:
        yield from leaves_of(kind)


LEAVES = sorted(leaves_of(errors.OncehookError), key=lambda error: error.__name__)


def as_written(default: object) -> str | None:
    """A default as an environment variable holds it; None where the setting is unset."""
    if default is None or default == ():
        return None
    return str(default).lower() if isinstance(default, bool) else str(default)


SETTINGS = {name.upper(): as_written(field.default) for name, field in Settings.model_fields.items()}


def test_every_setting_is_in_the_example_file_with_its_default() -> None:
    lines = re.findall(r"^(# )?([A-Z_]+)=(.*)$", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)
    shown = {name: None if commented else value for commented, name, value in lines}
    of_compose = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))

    assert {name: shown.get(name, "missing") for name in SETTINGS} == SETTINGS
    assert shown.keys() - SETTINGS.keys() <= of_compose, "a line that nothing reads"


def test_the_settings_page_has_every_setting_with_its_default() -> None:
    rows = rows_of(REFERENCE / "settings.md")

    assert {name: None if default == "unset" else default for name, (default, *_) in rows.items()} == SETTINGS


def test_the_example_file_is_a_working_configuration() -> None:
    assert Settings(_env_file=ROOT / ".env.example") == Settings(_env_file=None)


@pytest.mark.parametrize("error", [leaf for leaf in LEAVES if leaf not in NEVER_ANSWERED])
def test_every_error_has_a_status_and_the_page_says_the_same(error: type[errors.OncehookError]) -> None:
    documented = rows_of(REFERENCE / "errors.md")

    assert error.code in documented
    assert documented[error.code][0] == str(STATUS.get(error))


@pytest.mark.parametrize("error", NEVER_ANSWERED)
def test_an_error_that_is_no_answer_is_documented_and_has_no_status(error: type[errors.OncehookError]) -> None:
    assert error.code in rows_of(REFERENCE / "errors.md")
    assert error not in STATUS


def test_no_two_errors_share_a_code() -> None:
    codes = [leaf.code for leaf in LEAVES]

    assert len(codes) == len(set(codes))


def test_the_errors_page_names_no_code_that_is_gone() -> None:
    codes = {kind.code for leaf in LEAVES for kind in leaf.__mro__ if issubclass(kind, errors.OncehookError)}

    assert rows_of(REFERENCE / "errors.md").keys() <= codes


def test_the_outcomes_page_has_every_outcome_and_every_reason_and_no_other() -> None:
    documented = rows_of(REFERENCE / "outcomes.md")
    of_reasons = {documented[reason][0] for reason in Reason if reason in documented}

    assert documented.keys() == {*Outcome, *Reason}
    assert of_reasons == set(Outcome)


def test_every_metric_is_documented() -> None:
    families: list[Metric] = list(metrics.REGISTRY.collect())
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    ours = {name for name in names if name.startswith("oncehook_")}

    assert ours
    assert ours == rows_of(REFERENCE / "metrics.md").keys()


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_a_lock_pins_each_package_with_hashes_and_says_nothing_of_where_from(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    pins = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]

    assert pins
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE), "an option, such as an index"
    assert [pin for pin in pins if not re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+ .*--hash=sha256:", pin, re.DOTALL)] == []


@pytest.mark.parametrize(
    ("name", "of_groups", "of_extras"),
    [("requirements.lock", ["build"], []), ("requirements-dev.lock", ["build", "dev"], ["embedded"])],
)
def test_a_lock_holds_all_that_the_project_names(name: str, of_groups: list[str], of_extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [
        *project["project"]["dependencies"],
        *(line for extra in of_extras for line in project["project"]["optional-dependencies"][extra]),
        *(line for group in of_groups for line in project["dependency-groups"][group] if isinstance(line, str)),
    ]
    pinned = re.findall(r"^([\w.-]+)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)

    assert {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted} <= set(pinned)


def test_the_targets_that_the_readme_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", " ".join(code_in((ROOT / "README.md").read_text(encoding="utf-8")))))

    assert named
    assert named <= targets


def code_in(markdown: str) -> list[str]:
    """The code spans and code blocks of a page."""
    return re.findall(r"```.*?```|`[^`\n]+`", markdown, re.DOTALL)


def files_of_the_repository() -> Iterator[Path]:
    """Its text files; folders that begin with a dot are caches and tools' own, but for those of CI."""
    for path in sorted(ROOT.rglob("*")):
        folders = path.relative_to(ROOT).parts[:-1]
        hidden = any(part.startswith(".") and part not in {".ci", ".github"} for part in folders)
        if not (hidden or "__pycache__" in folders) and path.is_file():
            yield path


def test_no_file_says_where_packages_come_from() -> None:
    index = re.compile(r"--(extra-)?index-url[ =]|--find-links[ =]|^registry *=", re.MULTILINE)

    assert [path for path in files_of_the_repository() if index.search(path.read_text("utf-8", errors="replace"))] == []
