from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.providers.stripe.previous import put_back

SCALAR = st.none() | st.integers(0, 3) | st.sampled_from(["a", "b"]) | st.booleans()


def hashes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects in which the first letter of a key says what kind of value it holds, in every version of the object."""
    fields = {
        "scalar": SCALAR,
        "words": st.lists(st.sampled_from(["x", "y"]), max_size=3),
        "hash": inner,
        "named": st.lists(
            st.tuples(st.sampled_from(["i1", "i2", "i3"]), inner).map(lambda pair: {**pair[1], "id": pair[0]}),
            unique_by=lambda element: str(element["id"]),
            max_size=3,
        ),
        "nameless": st.lists(inner, max_size=3),
    }
    return st.fixed_dictionaries({}, optional={key: value | st.none() for key, value in fields.items()})


OBJECTS = hashes(hashes(st.fixed_dictionaries({}, optional={"scalar": SCALAR, "other": SCALAR})))


def diff(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What Stripe writes: the old value of what changed, null for what was not there."""
    changed: dict[str, Any] = {}
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            changed[key] = diff(old, new)
        elif isinstance(old, list) and isinstance(new, list):
            changed[key] = [old_element(element, position, new) for position, element in enumerate(old)]
        else:
            changed[key] = old
    return changed


def old_element(element: Any, position: int, new: list[Any]) -> Any:
    if not isinstance(element, dict):
        return element
    if "id" in element:
        counterpart = next((other for other in new if other["id"] == element["id"]), None)
        return element if counterpart is None else {"id": element["id"], **diff(element, counterpart)}
    return diff(element, new[position]) if position < len(new) else element


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


@given(OBJECTS, OBJECTS)
def test_a_diff_put_back_gives_the_object_before(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert without_nulls(put_back(after, diff(before, after))) == without_nulls(before)


@given(OBJECTS, OBJECTS)
def test_putting_back_changes_neither_argument(post: dict[str, Any], old: dict[str, Any]) -> None:
    copies = deepcopy((post, old))
    put_back(post, old)
    assert (post, old) == copies


@given(OBJECTS)
def test_an_empty_diff_leads_back_to_the_same_object(post: dict[str, Any]) -> None:
    assert put_back(post, {}) == post


def test_null_means_that_the_key_was_absent() -> None:
    assert put_back({"metadata": {"a": "1", "test": "2"}}, {"metadata": {"test": None}}) == {"metadata": {"a": "1"}}


def test_a_hash_that_is_gone_comes_back_as_it_is_given() -> None:
    assert put_back({"pause_collection": None}, {"pause_collection": {"behavior": "void", "resumes_at": None}}) == {
        "pause_collection": {"behavior": "void"}
    }


def test_a_partial_element_is_put_into_the_one_of_its_id() -> None:
    post = {"items": {"data": [{"id": "b", "end": 20, "n": 2}, {"id": "a", "end": 10, "n": 1}]}}
    old = {"items": {"data": [{"id": "a", "end": 1}, {"id": "b", "end": 2}]}}
    assert put_back(post, old) == {"items": {"data": [{"id": "a", "end": 1, "n": 1}, {"id": "b", "end": 2, "n": 2}]}}


def test_an_element_without_an_id_is_put_into_the_one_at_its_position() -> None:
    post = {"items": {"data": [{"id": "a", "end": 10, "n": 1}, {"id": "b", "end": 10, "n": 2}]}}
    assert put_back(post, {"items": {"data": [{"end": 1}]}}) == {"items": {"data": [{"id": "a", "end": 1, "n": 1}]}}


def test_the_old_list_says_which_elements_there_were() -> None:
    post = {"items": {"object": "list", "data": [{"id": "a", "n": 1}, {"id": "new", "n": 2}]}}
    old = {"items": {"data": [{"id": "gone", "n": 9}, {"id": "a"}]}}
    assert put_back(post, old) == {"items": {"object": "list", "data": [{"id": "gone", "n": 9}, {"id": "a", "n": 1}]}}


def test_a_bare_list_is_put_into_the_data_of_a_list_object() -> None:
    post = {"items": {"object": "list", "data": [{"id": "a", "end": 10, "n": 1}]}}
    assert put_back(post, {"items": [{"id": "a", "end": 1}]}) == {
        "items": {"object": "list", "data": [{"id": "a", "end": 1, "n": 1}]}
    }


def test_ids_that_are_no_text_do_not_confuse() -> None:
    post = {"list": [{"id": ["x"], "n": 1}, "word"]}
    assert put_back(post, {"list": [{"id": {}}, {"m": 2}]}) == {"list": [{"id": {}, "n": 1}, {"m": 2}]}
