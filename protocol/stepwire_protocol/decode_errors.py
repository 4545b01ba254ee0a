"""Plain sentences for the validation errors of msgspec, whose texts name types and paths of Python programs."""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec import inspect

_NAME_CHARACTERS_MAX: Final = 64  # of an unknown member, which the sender chose

_ERROR_CHARACTERS_MAX: Final = 1024  # of an error, which may contain a member's name of any length

_AT: Final = re.compile(r"(.*?)(?: - at `(key` in `)?\$([^`]*)`)?", re.DOTALL)
_PART: Final = re.compile(r"\.([^.\[\]]+)|\[([0-9]+|\.\.\.)\]")

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_UNITS: Final = {"str": "characters", "array": "items", "object": "members"}
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}


class Fault(NamedTuple):
    """`place` is the member's path, `tasks[0].priority`, or empty for the whole value. `text` follows its name."""

    place: str
    text: str

    def about(self, whole: str) -> str:
        """The sentence. `whole` names the value that was decoded, for a fault without a place."""
        return f"{f'`{self.place}`' if self.place else whole} {self.text}"


def plain(error: str, kind: Any, whole: str = "the JSON") -> str:
    """Return the sentence for a validation error of msgspec, or the error itself if its form is unknown. `kind` is the
    type that was decoded: its enumerations name the accepted values."""
    fault = fault_of(error, kind)
    return shortened(error) if fault is None else fault.about(whole)


def shortened(error: str) -> str:
    """The error, with the middle of an overlong name left out. The end names the place."""
    if len(error) <= _ERROR_CHARACTERS_MAX:
        return error
    return f"{error[: _ERROR_CHARACTERS_MAX // 2]}…{error[-_ERROR_CHARACTERS_MAX // 2 :]}"


def fault_of(error: str, kind: Any) -> Fault | None:
    """Return None for an error of an unknown form."""
    at = _AT.fullmatch(shortened(error))
    assert at is not None  # the pattern matches every text
    problem, is_key, path = at[1], at[2], at[3] or ""
    place = path.removeprefix(".").replace("[...]", "[…]")
    if (member := _MEMBER.fullmatch(problem)) is not None:
        name = member[2][:_NAME_CHARACTERS_MAX]
        return Fault(f"{place}.{name}" if place else name, "is missing" if member[1] else "is not a known member")
    for pattern, text_of in _FORMS:
        if (form := pattern.fullmatch(problem)) is not None:
            requirement = text_of(form, kind, path)
            if requirement is None:
                return None
            return Fault(place, f"has a key that {requirement}" if is_key else requirement)
    return None


def _mismatch(form: re.Match[str], kind: Any, path: str) -> str:
    expected, actual = form[1].split(" | "), form[2]
    text = f"must be {' or '.join(_KINDS.get(name, name) for name in expected)}"
    if actual is None:
        return text
    if "str" in expected and actual in ("int", "float", "bool"):
        return f"{text}, not {'true or false' if actual == 'bool' else 'a number'}: quote it"
    if actual == "float" or (actual == "int" and "float" not in expected):
        actual_text = "a number with a fraction" if actual == "float" else "a number"
        return f"{text}, not {actual_text}"
    return f"{text}, not {_KINDS.get(actual, actual)}"


def _enumeration(form: re.Match[str], kind: Any, path: str) -> str | None:
    """None if the type does not determine the values: alternatives of a union can have the same member."""
    choices = set(_choices(kind, path))
    if len(choices) != 1:
        return None
    return f"must be one of {', '.join(map(str, choices.pop()))}, not {form[1][:_NAME_CHARACTERS_MAX]}"


_MEMBER: Final = re.compile(r"Object (?:(missing required)|contains unknown) field `(.*)`", re.DOTALL)
_FORMS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str], Any, str], str | None]], ...]] = (
    (re.compile(r"Expected `([\w |]+)`(?:, got `(\w+)`)?"), _mismatch),
    (re.compile(r"Expected `(?:int|float)` ([<>]=?) (\S+)"), lambda form, *_: f"must be {_BOUNDS[form[1]]} {form[2]}"),
    (re.compile(r"Expected `(?:str|array|object)` of length >= 1"), lambda *_: "must not be empty"),
    (
        re.compile(r"Expected `(str|array|object)` of length ([<>]=) (\d+)"),
        lambda form, *_: f"must have {_BOUNDS[form[2]]} {form[3]} {_UNITS[form[1]]}",
    ),
    (re.compile(r"Expected `array` of length (\d+)"), lambda form, *_: f"must be a list of {form[1]} items"),
    (re.compile(r"Expected `str` matching regex (.+)"), lambda form, *_: f"must match the pattern {form[1]}"),
    (re.compile(r"Invalid enum value (.+)", re.DOTALL), _enumeration),
    (re.compile(r"Integer value out of range"), lambda *_: "is outside ±(2^53 - 1)"),
)


# -- the type at a path -----------------------------------------------------------------------------------------------


def _choices(kind: Any, path: str) -> Iterator[tuple[Any, ...]]:
    types = list(_alternatives(_described(kind)))
    for name, index in _PART.findall(path):
        types = [one for each in types for inner in _inner(each, name, index) for one in _alternatives(inner)]
    for each in types:
        if isinstance(each, inspect.LiteralType):
            yield tuple(each.values)
        elif isinstance(each, inspect.EnumType):
            yield tuple(member.value for member in each.cls)


@lru_cache(maxsize=64)
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _alternatives(each)
    else:
        yield kind


def _inner(kind: inspect.Type, name: str, index: str) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType(fields=fields) if name:
            yield from (field.type for field in fields if field.encode_name == name)
        case inspect.DictType(value_type=value) if not name:
            yield value
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) if not name:
            yield item
        case inspect.TupleType(item_types=items) if index.isdigit() and int(index) < len(items):
            yield items[int(index)]
