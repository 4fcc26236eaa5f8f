import json
from contextlib import nullcontext
from time import perf_counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import NotJson
from app.providers import json_body
from app.providers.json_body import MAX_DEPTH, canonical_hash, decode, storable, substituted

NONE: frozenset[str] = frozenset()
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.booleans(), st.sampled_from([None, 2]))
def test_what_a_sender_writes_is_read_back(value: Any, ascii_only: bool, indent: int | None) -> None:
    assert decode(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()) == value


def test_a_lone_surrogate_is_json() -> None:
    assert decode(rb'{"a": "\ud83d", "b": "\u0000"}') == {"a": "\ud83d", "b": "\x00"}


def test_an_integer_of_any_length_is_json() -> None:
    assert decode(b'{"a": ' + b"9" * 400 + b"}") == {"a": int("9" * 400)}
    assert decode(str(2**64 - 1).encode()) == 2**64 - 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[1,]",
        b'{"a": NaN}',
        b'{"a": Infinity, "b": "\\ud83d"}',
        b"-Infinity",
        b"1e999",
        b'["\\ud83d", -1e999]',
        b'{"a": "\xff"}',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        '{"a": 1}'.encode("utf-16"),
        b"9" * 5000,
        b'{"a": 1} trailing',
        b'"open',
    ],
)
def test_what_is_not_json_in_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(NotJson):
        decode(body)


def test_a_lenient_read_takes_finite_floats() -> None:
    assert decode(rb'["\ud83d", 1.5]') == ["\ud83d", 1.5]


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_nesting_is_taken_up_to_the_limit_and_refused_beyond(opening: bytes, closing: bytes) -> None:
    levels = MAX_DEPTH // opening.count(b"[") if opening == b"[" else MAX_DEPTH // (opening.count(b"[") + 1)
    decode(opening * levels + b"1" + closing * levels)
    with pytest.raises(NotJson):
        decode(opening * (levels + 1) + b"1" + closing * (levels + 1))


@pytest.mark.parametrize("tail", [b"", b'"\\ud83d"'])
def test_nesting_that_would_exhaust_the_stack_is_refused(tail: bytes) -> None:
    with pytest.raises(NotJson):
        decode(b"[" * 400_000 + tail)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    body = b"[" + b",".join([b'{"a": [1]}'] * 1000) + b"]"
    assert len(decode(body)) == 1000


def test_brackets_in_strings_are_not_nesting() -> None:
    text = '[{"\\' * 500
    assert decode(json.dumps([text, [text]]).encode()) == [text, [text]]


TRICKY = st.text('[]{}"\\\\a,', max_size=8)
NESTED = st.recursive(
    TRICKY, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TRICKY, inner, max_size=3), max_leaves=12
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(NESTED)
def test_the_limit_counts_levels_whatever_the_strings_hold(value: Any) -> None:
    body = json.dumps(value).encode()
    levels = depth(value)
    with patch.object(json_body, "MAX_DEPTH", levels):
        assert decode(body) == value
    with patch.object(json_body, "MAX_DEPTH", levels - 1), pytest.raises(NotJson) if levels else nullcontext():
        decode(body)


@pytest.mark.parametrize("body", [b"[" * 129 + b'\\"' * 400_000, b'"' + b'\\"[' * 300_000, b'["' + b"[\\" * 300_000])
def test_a_string_that_never_closes_costs_no_more(body: bytes) -> None:
    begun = perf_counter()
    with pytest.raises(NotJson):
        decode(body)
    assert perf_counter() - begun < 2


def test_the_hash_ignores_key_order_spacing_and_escapes() -> None:
    one = decode('{"a": 1, "b": {"c": "\u00d7", "d": null}}'.encode())
    other = decode(b'{"b":{"d":null,"c":"\\u00d7"},"a":1}')
    assert canonical_hash(one, NONE) == canonical_hash(other, NONE)


def test_the_hash_leaves_out_only_the_top_level_keys_that_are_named() -> None:
    named = frozenset({"live"})
    assert canonical_hash({"a": 1, "live": 2}, named) == canonical_hash({"a": 1, "live": 3}, named)
    assert canonical_hash({"a": {"live": 2}}, named) != canonical_hash({"a": {"live": 3}}, named)
    assert canonical_hash({"a": 1}, named) != canonical_hash({"a": 2}, named)


@pytest.mark.parametrize("odd", ["\ud83d", 2**70, 10**4000])
def test_the_hash_takes_every_value_that_decode_gives(odd: Any) -> None:
    assert canonical_hash({"a": odd, "b": 1}, NONE) == canonical_hash({"b": 1, "a": odd}, NONE)
    assert canonical_hash({"a": odd}, NONE) != canonical_hash({"a": 1}, NONE)
    assert canonical_hash([odd], NONE) != canonical_hash([1], NONE)


def test_text_that_postgresql_cannot_hold_is_substituted_visibly() -> None:
    assert substituted("a\x00b\ud83dc\u00d7😀") == "a\ufffdb\ufffdc\u00d7😀"
    assert storable("c\u00d7😀")
    assert not storable("\x00")
    assert not storable("\udfff")
