"""Readers for the members of a definition: each returns the value that the written form means.

A reader that finds a problem adds it to the report and returns None, as if the member were absent.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, get_args

from msgspec import Struct
from stepwire_protocol import topics

from stepwire_broker.core.reading.document_problems import Path, ProblemCollector, shown
from stepwire_broker.core.reading.durations import DURATION_MAX_MS, FORMS, milliseconds

from .trigger_rules import Compare, DependencyEnded, Every, Nothing, Op, Some, TriggerRule

NAME_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}"  # of a step: in paths, in idempotency keys, in JSON
WORKFLOW_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
VERSION_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}"
NAMESPACE_CHARACTERS_MAX: Final = 128
TEXT_CHARACTERS_MAX: Final = 8_192
PATH_CHARACTERS_MAX: Final = 1_024
LABELS_MAX: Final = 64
LABEL_CHARACTERS_MAX: Final = 256
MEMBERS_MAX: Final = 1_000  # of an input or output mapping

Reader: TypeAlias = Callable[[Any, Path, ProblemCollector], Any]
ValuePath: TypeAlias = tuple[str, ...]


def members(
    document: dict[str, Any], readers: Mapping[str, Reader], path: Path, report: ProblemCollector
) -> dict[str, Any]:
    """Read the known members. `null` counts as absent, and `…_ms` may be written without its suffix."""
    read: dict[str, Any] = {}
    written_as: dict[str, str] = {}
    for key, value in document.items():
        name = key if key in readers else _synonym(key, readers)
        if name is None:
            report.add((*path, key), f"unknown member{report.suggestion(str(key), readers.keys())}")
        elif name in written_as:
            report.add((*path, key), f"{written_as[name]} and {key} are the same; keep one")
        else:
            written_as[name] = key
            if value is not None:
                if name.endswith("_ms"):
                    value = _written_duration(value, key, (*path, key), report)
                meant = None if value is None else readers[name](value, (*path, key), report)
                if meant is not None:
                    read[name] = meant
    return read


def _synonym(key: str, readers: Mapping[str, Reader]) -> str | None:
    if not isinstance(key, str):
        return None
    name = "worker_selector" if key == "workerSelector" else f"{key}_ms"
    return name if name in readers else None


def _written_duration(value: Any, key: str, path: Path, report: ProblemCollector) -> Any:
    if key.endswith("_ms"):
        return value
    ms = milliseconds(value) if isinstance(value, str) else None
    if ms is None:
        report.add(path, f"{shown(value)} is not a duration like {FORMS}; or write {key}_ms in milliseconds")
    return ms


# -- simple values ----------------------------------------------------------------------------------------------------


def text(value: Any, path: Path, report: ProblemCollector) -> str | None:
    if isinstance(value, str) and len(value) <= TEXT_CHARACTERS_MAX:
        return value
    report.add(path, f"{shown(value)} is not a text of at most {TEXT_CHARACTERS_MAX} characters")
    return None


def boolean(value: Any, path: Path, report: ProblemCollector) -> bool | None:
    if isinstance(value, bool):
        return value
    report.add(path, f"{shown(value)} is not true or false")
    return None


class Integer(Struct, frozen=True):
    """Readers with parameters are structs, so that workflow_schema.py can read the parameters."""

    least: int
    most: int

    def __call__(self, value: Any, path: Path, report: ProblemCollector) -> int | None:
        if type(value) is int and self.least <= value <= self.most:
            return value
        report.add(path, f"{shown(value)} is not a whole number from {self.least} to {self.most}")
        return None


duration_ms: Final = Integer(1, DURATION_MAX_MS)
pause_ms: Final = Integer(0, DURATION_MAX_MS)


class OneOf(Struct, frozen=True):
    words: tuple[str, ...]

    def __call__(self, value: Any, path: Path, report: ProblemCollector) -> str | None:
        if isinstance(value, str) and value in self.words:
            return value
        report.add(path, f"{shown(value)} is not {' or '.join(self.words)}")
        return None


class Matching(Struct, frozen=True):
    pattern: str
    form: str
    characters_max: int | None = None  # where the pattern has no limit of its own

    def __call__(self, value: Any, path: Path, report: ProblemCollector) -> str | None:
        if isinstance(value, str) and self.characters_max is not None and len(value) > self.characters_max:
            report.add(path, f"{len(value)} characters; at most {self.characters_max} are allowed")
            return None
        if isinstance(value, str) and re.fullmatch(self.pattern, value):
            return value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        report.add(path, f"{shown(value)} is not {self.form}{'; quote it' if is_number else ''}")
        return None


step_name: Final = Matching(NAME_PATTERN, "a name of letters, digits, _ and -, at most 128")
workflow_name: Final = Matching(WORKFLOW_PATTERN, "a name of letters, digits, _, - and ., at most 128")
version: Final = Matching(VERSION_PATTERN, "a version of letters, digits, _, -, . and +, at most 64")
handler_class: Final = Matching(
    topics.HANDLER_CLASS_PATTERN, "the name of a handler: letters, digits, _, ., : and -, at most 128"
)
namespace: Final = Matching(
    rf"{WORKFLOW_PATTERN}(?:::{WORKFLOW_PATTERN})*",
    "names of letters, digits, _, - and ., joined by ::",
    NAMESPACE_CHARACTERS_MAX,
)


# -- composed values --------------------------------------------------------------------------------------------------


def any_map(value: Any, path: Path, report: ProblemCollector) -> dict[str, Any] | None:
    """A map whose members are read elsewhere or not at all."""
    if isinstance(value, dict):
        return value
    report.add(path, f"{shown(value)} is not a map")
    return None


def step_list(value: Any, path: Path, report: ProblemCollector) -> list[Any] | None:
    """A list whose items are read elsewhere."""
    if isinstance(value, list):
        return value
    report.add(path, f"{shown(value)} is not a list; begin each step with `- name:`")
    return None


def step_names(value: Any, path: Path, report: ProblemCollector) -> list[str] | None:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    odd = next((item for item in value if not isinstance(item, str)), None) if isinstance(value, list) else value
    report.add(path, f"{shown(odd)} is not {'a step name' if isinstance(value, list) else 'a list of step names'}")
    return None


def selector(value: Any, path: Path, report: ProblemCollector) -> dict[str, str] | str | None:
    """Read labels or the string `local`. An empty map requires no labels."""
    if isinstance(value, str):
        if value.strip().lower() == "local":
            return "local"
        report.add(path, f"{shown(value)} is not a map of labels or the string local")
        return None
    if not isinstance(value, dict):
        report.add(path, f"{shown(value)} is not a map of labels or the string local")
        return None
    if len(value) > LABELS_MAX:
        report.add(path, f"{len(value)} labels; at most {LABELS_MAX} are allowed")
        return None
    labels: dict[str, str] = {}
    for key, label in value.items():
        name, wanted = key.strip() if isinstance(key, str) else "", _label(label)
        if not name or len(name) > LABEL_CHARACTERS_MAX or name in labels:
            report.add((*path, key), "a label's key is a string of 1 to 256 characters, and occurs once")
        elif wanted is None or len(wanted) > LABEL_CHARACTERS_MAX:
            report.add((*path, key), f"{shown(label)} is not a string of at most 256 characters")
        else:
            labels[name] = wanted
    return labels


def _label(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip()
    return shown(value) if isinstance(value, int | float) else None


# -- paths into values ------------------------------------------------------------------------------------------------


def mapping(value: Any, path: Path, report: ProblemCollector) -> dict[str, str] | None:
    """`{member: path}`. The paths are checked when the steps are known."""
    if not isinstance(value, dict) or len(value) > MEMBERS_MAX:
        report.add(path, f"{shown(value)} is not a map of at most {MEMBERS_MAX} members to paths")
        return None
    for member, target in value.items():
        if not isinstance(target, str):
            report.add((*path, member), f"{shown(target)} is not {_A_PATH}{_constant_hint((*path, member))}")
    return value


_A_PATH: Final = "a path like context.order or results.step.total"


def _constant_hint(path: Path) -> str:
    """Where a constant belongs instead. Only an `input` can hold one by mistake: an `output` selects results."""
    return "; a constant belongs in the step's handler_config" if "input" in path else ""


def resolved_mapping(
    value: dict[str, str], steps: Mapping[str, int], whose: str, path: Path, report: ProblemCollector
) -> tuple[tuple[str, ValuePath], ...]:
    """Check and split the paths of a mapping. `whose` describes `steps` in a message."""
    resolved = []
    for member, target in value.items():
        if isinstance(target, str):
            words = split_path(target, (*path, member), report)
            if words is not None and _leads_somewhere(words, target, steps, whose, (*path, member), report):
                resolved.append((member, words))
    return tuple(resolved)


def _leads_somewhere(
    words: ValuePath, target: str, steps: Mapping[str, int], whose: str, path: Path, report: ProblemCollector
) -> bool:
    if words[0] == "context":
        return True
    if words[0] != "results" or len(words) < 2:
        report.add(path, f"{shown(target)} is not {_A_PATH}{_constant_hint(path)}")
        return False
    if words[1] not in steps:
        report.add(path, f"{shown(words[1])} is not {whose}{report.suggestion(words[1], steps.keys())}")
        return False
    return True


def split_path(target: str, path: Path, report: ProblemCollector) -> ValuePath | None:
    words = tuple(target.split("."))
    if len(target) <= PATH_CHARACTERS_MAX and all(words):
        return words
    report.add(path, f"{shown(target)} is not a path: parts joined by dots, at most {PATH_CHARACTERS_MAX} characters")
    return None


# -- trigger rules ----------------------------------------------------------------------------------------------------

ENDED: Final = ("completed", "failed", "skipped")
TREES: Final[dict[str, Callable[[tuple[TriggerRule, ...]], TriggerRule]]] = {"all": Every, "any": Some, "none": Nothing}
OPS: Final[tuple[str, ...]] = get_args(Op)
OPS_WITHOUT_VALUE: Final = ("exists", "not_exists")
_FORMS: Final = "all, any, none, completed, failed, skipped, context or result"


def trigger_rule(value: Any, steps: Mapping[str, int], path: Path, report: ProblemCollector) -> TriggerRule | None:
    """Read a rule. `steps` are the steps that it may name: the dependencies of its step."""
    if not isinstance(value, dict):
        report.add(path, f"{shown(value)} is not a map with one of {_FORMS}")
        return None
    kinds = [key for key in value if key in TREES or key in ENDED or key in ("context", "result")]
    if len(kinds) != 1:
        report.add(path, f"a rule has exactly one of {_FORMS}; this one has {' and '.join(kinds) or 'none'}")
        return None
    kind = kinds[0]
    allowed = {kind} if kind not in ("context", "result") else {kind, "op", "value"}
    for key in value.keys() - allowed:
        report.add((*path, key), f"unknown member of a rule with {kind}{report.suggestion(str(key), allowed)}")
    if kind in TREES:
        return _tree(kind, value[kind], steps, (*path, kind), report)
    if kind in ENDED:
        step = _dependency(value[kind], steps, (*path, kind), report)
        return None if step is None else DependencyEnded(kind, step)
    return _comparison(kind, value, steps, path, report)


def _tree(kind: str, value: Any, steps: Mapping[str, int], path: Path, report: ProblemCollector) -> TriggerRule | None:
    if not isinstance(value, list) or not value:
        report.add(path, f"{'an empty list' if value == [] else shown(value)} is not a list of rules")
        return None
    rules = [trigger_rule(each, steps, (*path, i), report) for i, each in enumerate(value)]
    return TREES[kind](tuple(rule for rule in rules if rule is not None))


def _comparison(
    kind: str, value: dict[str, Any], steps: Mapping[str, int], path: Path, report: ProblemCollector
) -> TriggerRule | None:
    op, target = value.get("op"), value[kind]
    if op not in OPS:
        report.add((*path, "op"), f"{shown(op)} is not one of {', '.join(OPS)}")
    elif op in OPS_WITHOUT_VALUE and "value" in value:
        report.add((*path, "value"), f"{op} compares with nothing; leave it out")
    elif op not in OPS_WITHOUT_VALUE and "value" not in value:
        report.add(path, f"{op} needs a value to compare with")
    if not isinstance(target, str):
        report.add((*path, kind), f"{shown(target)} is not a path")
        return None
    words = split_path(target, (*path, kind), report)
    if words is None or op not in OPS:
        return None
    if kind == "context":
        return Compare("context", None, words, op, value.get("value"))
    step = _dependency(words[0], steps, (*path, kind), report)
    return None if step is None else Compare("result", step, words[1:], op, value.get("value"))


def _dependency(name: Any, steps: Mapping[str, int], path: Path, report: ProblemCollector) -> int | None:
    if isinstance(name, str) and name in steps:
        return steps[name]
    meant = report.suggestion(name, steps.keys()) if isinstance(name, str) else ""
    report.add(path, f"{shown(name)} is not in this step's depends_on{meant}")
    return None
