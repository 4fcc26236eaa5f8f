"""Puts `data.previous_attributes` back into the object it came from, which gives the object before the event."""

from collections.abc import Mapping, Sequence
from typing import Any


def put_back(post: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """The object before the change; neither argument is changed.

    Nested hashes merge key by key, and null in `old` means that the key was absent. `old` says which elements a list
    of objects had and in which order: each is put back into the one of the same id, or of the same position where it
    carries none; one that is gone since stands as it is given. Every other list is taken whole.
    https://docs.stripe.com/api/events/object#event_object-data-previous_attributes
    """
    before = dict(post)
    for key, value in old.items():
        if value is None:
            before.pop(key, None)
        else:
            before[key] = _before(before.get(key), value)
    return before


def _before(now: Any, old: Any) -> Any:
    if isinstance(old, Mapping):
        return put_back(now if isinstance(now, Mapping) else {}, old)
    if isinstance(old, list):
        if isinstance(now, Mapping) and isinstance(now.get("data"), list):  # a list object, its elements given bare
            return {**now, "data": _elements(now["data"], old)}
        return _elements(now if isinstance(now, list) else [], old)
    return old


def _elements(now: Sequence[Any], old: Sequence[Any]) -> list[Any]:
    by_id = {_id(element): element for element in now if _id(element) is not None}
    by_position = dict(enumerate(now))
    return [
        _before(by_position.get(position) if _id(element) is None else by_id.get(_id(element)), element)
        for position, element in enumerate(old)
    ]


def _id(element: Any) -> str | None:
    identity = element.get("id") if isinstance(element, Mapping) else None
    return identity if isinstance(identity, str) else None
