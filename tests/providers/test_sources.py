from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from app.errors import ConfigurationError
from app.providers.base import Secret, Source
from app.providers.sources import configured_sources

HIDDEN = "whsec_hidden"
GOOD = f'[[sources]]\nname = "eu"\nprovider = "stripe"\nsecrets = ["{HIDDEN}"]\n'

Load = Callable[..., dict[str, Source]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a file of the given text."""

    def load(text: str, environment: Mapping[str, str] | None = None, *stripe_secrets: str) -> dict[str, Source]:
        path = tmp_path / "sources.toml"
        path.write_text(text, encoding="utf-8")
        return configured_sources({"stripe": stripe_secrets}, path, environment or {})

    return load


def test_without_secrets_there_is_no_source() -> None:
    assert configured_sources({"stripe": [], "github": []}, None, {}) == {}


def test_stripe_secrets_make_the_source_stripe() -> None:
    sources = configured_sources({"stripe": ["whsec_a", "cli:whsec_b:c", "plain", "whsec_d:e"]}, None, {})
    assert sources["stripe"].secrets == (
        Secret("secret-1", b"whsec_a"),
        Secret("cli", b"whsec_b:c"),
        Secret("secret-3", b"plain"),
        Secret("secret-4", b"whsec_d:e"),
    )
    assert (sources["stripe"].namespace, sources["stripe"].livemode) == (None, "any")
    assert (sources["stripe"].max_body_bytes, sources["stripe"].deadline_seconds) == (1_000_000, 3.0)


@pytest.mark.parametrize(
    "secrets",
    [
        [""],
        ["   "],
        ["cli:"],
        [f":{HIDDEN}"],
        [f"C L I:{HIDDEN}"],
        [f"cli\n:{HIDDEN}"],
        [f"a:{HIDDEN}", f"a:{HIDDEN}2"],
        [f" {HIDDEN}"],
    ],
)
def test_a_stripe_secret_that_cannot_work_is_named_but_not_shown(secrets: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="source stripe: STRIPE_WEBHOOK_SECRETS") as caught:
        configured_sources({"stripe": secrets}, None, {})
    assert HIDDEN not in str(caught.value)


def test_a_source_of_the_file_takes_the_defaults_of_its_provider(load: Load) -> None:
    assert load(GOOD) == {"eu": Source("eu", "stripe", (Secret("secret-1", HIDDEN.encode()),))}


def test_every_key_of_a_source_is_read(load: Load) -> None:
    text = """
[[sources]]
name = "stripe-eu_2"
provider = "stripe"
secrets = ["whsec_a", {value = "whsec_b"}, {label = "new", value = "whsec_ü"}, {label = "env", env = "HOOK"}]
namespace = "acct_eu"
livemode = "live"
tenant = "shop"
shared = true
max_body_bytes = 2000000
deadline_seconds = 5
tolerance_seconds = 60
"""
    assert load(text, {"HOOK": "whsec_c"})["stripe-eu_2"] == Source(
        name="stripe-eu_2",
        provider="stripe",
        secrets=(
            Secret("secret-1", b"whsec_a"),
            Secret("secret-2", b"whsec_b"),
            Secret("new", "whsec_ü".encode()),
            Secret("env", b"whsec_c"),
        ),
        namespace="acct_eu",
        tenant="shop",
        livemode="live",
        shared=True,
        max_body_bytes=2_000_000,
        deadline_seconds=5.0,
        tolerance_seconds=60,
    )


def test_bytes_of_the_environment_that_are_not_utf8_are_taken_as_they_are(load: Load) -> None:
    text = GOOD.replace(f'"{HIDDEN}"', '{env = "HOOK"}')
    assert load(text, {"HOOK": "whsec_\udcff"})["eu"].secrets[0].value == b"whsec_\xff"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('colour = "red"', "colour"),
        ("namespace = 5", "namespace"),
        ('namespace = ""', "namespace"),
        ('namespace = "a:b"', "namespace"),
        ('tenant = ""', "tenant"),
        ('livemode = "both"', "livemode"),
        ('shared = "yes"', "shared"),
        ("shared = 1", "shared"),
        ("max_body_bytes = 999", "max_body_bytes"),
        ("max_body_bytes = 50000001", "max_body_bytes"),
        ("max_body_bytes = 0", "max_body_bytes"),
        ("max_body_bytes = 5000.5", "max_body_bytes"),
        ("deadline_seconds = 0.4", "deadline_seconds"),
        ("deadline_seconds = 0", "deadline_seconds"),
        ("deadline_seconds = 60.1", "deadline_seconds"),
        ("deadline_seconds = nan", "deadline_seconds"),
        ('deadline_seconds = "3"', "deadline_seconds"),
        ("deadline_seconds = true", "deadline_seconds"),
        ("tolerance_seconds = 0", "tolerance_seconds"),
        ("tolerance_seconds = 3601", "tolerance_seconds"),
        ("tolerance_seconds = true", "tolerance_seconds"),
    ],
)
def test_a_bad_value_is_refused_by_source_and_key(load: Load, line: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^source eu: {key}: ") as caught:
        load(GOOD + line)
    assert HIDDEN not in str(caught.value)


@pytest.mark.parametrize(
    "secrets",
    [
        "[]",
        f'"{HIDDEN}"',
        '[""]',
        '["  "]',
        f'["{HIDDEN}\\n"]',
        "[5]",
        "[{}]",
        '[{label = "a"}]',
        f'[{{value = "{HIDDEN}", env = "HOOK"}}]',
        f'[{{value = "{HIDDEN}", colour = "red"}}]',
        f'[{{label = "A B", value = "{HIDDEN}"}}]',
        f'[{{label = 5, value = "{HIDDEN}"}}]',
        f'[{{label = "a", value = "{HIDDEN}1"}}, {{label = "a", value = "{HIDDEN}2"}}]',
        '[{env = "ABSENT"}]',
        '[{env = "EMPTY"}]',
        '[{env = "BROKEN"}]',
        '[{value = ""}]',
    ],
)
def test_secrets_that_cannot_work_are_refused_and_never_shown(load: Load, secrets: str) -> None:
    environment = {"HOOK": HIDDEN, "EMPTY": "", "BROKEN": f"{HIDDEN}\ud800"}
    with pytest.raises(ConfigurationError, match=r"^source eu: secrets") as caught:
        load(GOOD.replace(f'["{HIDDEN}"]', secrets), environment)
    shown = f"{caught.value!r} {caught.value.__cause__!r}"
    assert HIDDEN not in shown
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_missing_environment_variable_is_named(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="ABSENT"):
        load(GOOD.replace(f'"{HIDDEN}"', '{env = "ABSENT"}'))


@pytest.mark.parametrize("name", ['"Eu"', '""', '"-eu"', '"eu\\n"', '"é"', f'"{"a" * 64}"', "5"])
def test_a_name_that_makes_no_path_is_refused(load: Load, name: str) -> None:
    with pytest.raises(ConfigurationError, match="source number 1 of the file: name: "):
        load(GOOD.replace('"eu"', name))


@pytest.mark.parametrize("missing", ["name", "provider", "secrets"])
def test_a_key_that_a_source_needs_is_named(load: Load, missing: str) -> None:
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith(missing))
    with pytest.raises(ConfigurationError, match=f": {missing}: "):
        load(text)


def test_an_unknown_provider_is_refused_with_those_there_are(load: Load) -> None:
    with pytest.raises(ConfigurationError, match=r"source eu: provider: .* stripe"):
        load(GOOD.replace('"stripe"', '"strype"'))


@pytest.mark.parametrize("text", ["x = 1", "sources = 5", "sources = [5]", f"{GOOD}\n[more]", "[[sources"])
def test_a_file_of_another_form_is_refused(load: Load, text: str) -> None:
    with pytest.raises(ConfigurationError, match="SOURCES_FILE"):
        load(text)


def test_an_empty_file_holds_no_source(load: Load) -> None:
    assert load("") == {}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.toml"):
        configured_sources({}, tmp_path / "absent.toml", {})


def test_a_file_that_is_not_utf8_is_refused_without_its_text(tmp_path: Path) -> None:
    path = tmp_path / "sources.toml"
    path.write_bytes(f'a = "{HIDDEN}\xff"'.encode("latin-1"))
    with pytest.raises(ConfigurationError, match="not UTF-8") as caught:
        configured_sources({}, path, {})
    assert HIDDEN not in str(caught.value)
    assert caught.value.__cause__ is None


def test_two_sources_of_one_name_are_refused(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="source eu: name"):
        load(GOOD + GOOD)
    with pytest.raises(ConfigurationError, match="source stripe: name"):
        load(GOOD.replace('"eu"', '"stripe"'), {}, "whsec_a")


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        ("", "", True),
        ('namespace = "a"', "", False),
        ('namespace = "a"', 'namespace = "a"', True),
        ('namespace = "self"', "", True),
        ('livemode = "live"', 'livemode = "test"', False),
        ('livemode = "live"', 'livemode = "live"', True),
        ('livemode = "live"', "", True),
        ("shared = true", "", True),
        ("shared = true", "shared = true", False),
    ],
)
def test_two_sources_share_a_namespace_only_if_both_say_so(load: Load, one: str, other: str, refused: bool) -> None:
    text = f"{GOOD}{one}\n{GOOD.replace('eu', 'us')}{other}\n"
    if refused:
        with pytest.raises(ConfigurationError, match=r"source us: namespace: .* eu"):
            load(text)
    else:
        assert set(load(text)) == {"eu", "us"}


def test_the_source_of_the_environment_counts_too(load: Load) -> None:
    with pytest.raises(ConfigurationError, match="source eu: namespace"):
        load(GOOD, {}, "whsec_a")
    assert set(load(GOOD + 'namespace = "acct_eu"', {}, "whsec_a")) == {"stripe", "eu"}


def test_github_secrets_make_the_source_github_and_may_hold_colons() -> None:
    source = configured_sources({"github": ["a:b", "whsec_c"]}, None, {})["github"]
    assert source.secrets == (Secret("secret-1", b"a:b"), Secret("secret-2", b"whsec_c"))
    assert (source.namespace, source.max_body_bytes, source.deadline_seconds) == ("github", 25_000_000, 8.0)


def test_github_sources_have_a_namespace_each_and_no_modes(load: Load) -> None:
    text = GOOD.replace('"stripe"', '"github"')
    assert load(text)["eu"].namespace == "eu"
    assert load(text)["eu"].secrets == (Secret("secret-1", HIDDEN.encode()),)
    with pytest.raises(ConfigurationError, match="source us: namespace"):
        load(text + text.replace('"eu"', '"us"') + 'namespace = "eu"')
    with pytest.raises(ConfigurationError, match="source eu: livemode: github has no"):
        load(text + 'livemode = "test"')
