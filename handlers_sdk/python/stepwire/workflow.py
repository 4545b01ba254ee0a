"""Workflows in Python, with the same members and the same document as in a file.

order = Workflow("order_fulfillment", namespace="shop", version="1.0")
validate = order.step("validate_order", "orders.validate")
pay = order.step(
    "pay", "payments.charge", depends_on=[validate], delivery_mode="at_most_once", input={"total": validate["total"]}
)
order.step("refund", "payments.refund", depends_on=[pay], trigger_rule=any_of(pay.failed, pay["declined"].equals(True)))
order.output({"transaction": pay["transaction_id"]})

Client().apply_workflow(order), or `stepwire workflow apply order.py`.

Each step is checked when it is added, so an exception points to the line of the mistake. A step can depend only on
steps that were added before, so cycles are impossible. The broker checks the whole workflow.
`stepwire workflow validate order.py` does the same, and names the line of the step.
"""

import difflib
import sys
from collections.abc import Collection, Mapping, Sequence
from types import FrameType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypedDict, Unpack, get_args, get_origin, is_typeddict

import msgspec
from msgspec import Meta
from stepwire_protocol import topics
from stepwire_protocol.messages import DeliveryMode

from .errors import ConfigurationError

_MS_MAX: Final = 366 * 24 * 3600 * 1000


def _named(pattern: str, form: str) -> Meta:
    return Meta(pattern=rf"^(?:{pattern})\Z", description=form)


def _whole(least: int, most: int) -> Meta:
    return Meta(ge=least, le=most, description=f"a whole number from {least} to {most}")


# The forms of the workflow format, and their description for error messages. A test compares them with the format.
_NAME: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]"
Name: TypeAlias = Annotated[
    str, _named(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}", "a name of letters, digits, _ and -, at most 128")
]
WorkflowName: TypeAlias = Annotated[
    str, _named(_NAME + "{0,127}", "a name of letters, digits, _, - and ., at most 128")
]
Namespace: TypeAlias = Annotated[
    str, _named(f"(?=.{{1,128}}\\Z){_NAME}*(?:::{_NAME}*)*", "names of letters, digits, _, - and ., joined by ::")
]
Version: TypeAlias = Annotated[
    str, _named(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}", "a version of letters, digits, _, -, . and +, at most 64")
]
HandlerClass: TypeAlias = Annotated[
    str,
    _named(topics.HANDLER_CLASS_PATTERN, "the name of a handler: letters, digits, _, ., : and -, at most 128"),
]
Text: TypeAlias = Annotated[str, Meta(max_length=8_192, description="a text of at most 8192 characters")]
Milliseconds: TypeAlias = Annotated[int, _whole(1, _MS_MAX)]
PauseMs: TypeAlias = Annotated[int, _whole(0, _MS_MAX)]
Duration: TypeAlias = Annotated[
    str, _named(r"\s*[0-9]{1,15}(?:\.[0-9]{1,3})?\s*(?:ms|s|m|h|d)\s*", "a duration like 250ms, 30s, 5m, 2h or 7d")
]
Labels: TypeAlias = Mapping[str, str | bool | int | float]
Selector: TypeAlias = Annotated[Labels | Literal["local"], Meta(description="a map of labels, or 'local'")]
Rule: TypeAlias = dict[str, Any]  # as in the file: {"failed": "pay"}, {"any": [...]}


class Backoff(TypedDict, total=False):
    """The wait before the next attempt."""

    kind: Literal["exponential", "constant"]
    base_ms: PauseMs
    base: Duration
    max_ms: PauseMs
    max: Duration
    jitter: Literal["full", "none"]


class Value:
    """A value in the task's context or in a step's output: `order.context["order_id"]`, `pay["amount"]`."""

    def __init__(self, source: Literal["context", "results"], path: tuple[str, ...]) -> None:
        self._source: Final = source
        self._path: Final = path

    def __getitem__(self, part: str | int) -> "Value":
        """A member by its key, or an item by its number."""
        text = str(part)
        if not text or "." in text:
            raise ConfigurationError(f"{text!r} cannot be part of a path: a part is not empty and has no dot")
        return Value(self._source, (*self._path, text))

    __iter__ = None  # otherwise Python would iterate with __getitem__, without end

    def __str__(self) -> str:
        return ".".join((self._source, *self._path))

    # -- comparisons, for a trigger_rule --

    def equals(self, value: Any) -> Rule:
        return self._rule("equals", value)

    def not_equals(self, value: Any) -> Rule:
        return self._rule("not_equals", value)

    def greater_than(self, value: Any) -> Rule:
        return self._rule("greater_than", value)

    def less_than(self, value: Any) -> Rule:
        return self._rule("less_than", value)

    def contains(self, value: Any) -> Rule:
        return self._rule("contains", value)

    def not_contains(self, value: Any) -> Rule:
        return self._rule("not_contains", value)

    def exists(self) -> Rule:
        return self._rule("exists")

    def not_exists(self) -> Rule:
        return self._rule("not_exists")

    def _rule(self, op: str, *value: Any) -> Rule:
        if not self._path:
            raise ConfigurationError(f'{op} compares a value in the context: order.context["order_id"].{op}(…)')
        side = "context" if self._source == "context" else "result"
        return {side: ".".join(self._path), "op": op, **({"value": value[0]} if value else {})}


def all_of(*rules: Rule) -> Rule:
    """A trigger rule that is true if all of these rules are true."""
    return {"all": list(rules)}


def any_of(*rules: Rule) -> Rule:
    """A trigger rule that is true if at least one of these rules is true."""
    return {"any": list(rules)}


def none_of(*rules: Rule) -> Rule:
    """A trigger rule that is true if none of these rules is true."""
    return {"none": list(rules)}


class Step(Value):
    """A step of a workflow, for use in later steps. Used as a value, it is the step's whole output."""

    def __init__(self, workflow: "Workflow", name: str) -> None:
        super().__init__("results", (name,))
        self.workflow: Final = workflow
        self.name: Final = name

    @property
    def completed(self) -> Rule:
        return {"completed": self.name}

    @property
    def failed(self) -> Rule:
        """A rule that is true after the step has failed and its retries are exhausted.

        After a failure of an earlier step, this step is skipped instead. `none_of(step.completed)` covers both.
        """
        return {"failed": self.name}

    @property
    def skipped(self) -> Rule:
        return {"skipped": self.name}

    def __repr__(self) -> str:
        return f"<step {self.name} of {self.workflow.name}>"


ValueMap: TypeAlias = Mapping[str, Value | str]  # a string is a path, as in the file: "context.order_id"


class StepMembers(TypedDict, total=False):
    """The members of a step, in addition to name, handler_class and depends_on."""

    description: Text
    trigger_rule: Rule
    handler_config: Mapping[str, Any]
    input: ValueMap
    delivery_mode: DeliveryMode
    on_unknown: Literal["hold", "fail"]
    retry_limit: Annotated[int, _whole(0, 10_000)]
    retry_reported_failures: bool
    backoff: Backoff
    timeout_ms: Milliseconds
    timeout: Duration
    queue_timeout_ms: Milliseconds
    queue_timeout: Duration
    deadline_ms: Milliseconds
    deadline: Duration
    priority: Annotated[int, _whole(-100, 100)]
    worker_selector: Selector
    allow_failure: bool


class WorkflowMembers(TypedDict, total=False):
    """The members of a workflow, in addition to name, steps and output."""

    namespace: Namespace
    version: Version
    description: Text
    deadline_ms: Milliseconds
    deadline: Duration
    worker_selector: Selector
    payloads: Literal["open", "sealed"]


class Workflow:
    """A workflow under construction: add steps, then pass it to `Client.apply_workflow`, or use its `document()`."""

    def __init__(self, name: str, **members: Unpack[WorkflowMembers]) -> None:
        subject = f"workflow {name!r}"
        self.name: Final[str] = _checked(name, WorkflowName, subject, "name")
        self.context: Final = Value("context", ())
        self._head: Final = _members(members, WorkflowMembers, subject)
        self._steps: Final[dict[str, dict[str, Any]]] = {}
        self._output: dict[str, str] | None = None
        self._place: Final = _caller()
        self._places: Final[list[str]] = []

    def step(
        self,
        name: str,
        handler_class: str,
        *,
        depends_on: "Sequence[Step | str]" = (),
        **members: Unpack[StepMembers],
    ) -> Step:
        """Add a step. `depends_on`, `trigger_rule` and `input` may name only steps that were added before."""
        subject = f"step {name!r}"
        written: dict[str, Any] = {
            "name": _checked(name, Name, subject, "name"),
            "handler_class": _checked(handler_class, HandlerClass, subject, "handler_class"),
        }
        if name in self._steps:
            raise ConfigurationError(f"{subject}: {self.name} already has a step with this name")
        needed = self._needed(depends_on, subject)
        if needed:
            written["depends_on"] = needed
        values = members.pop("input", None)
        written |= _members(members, StepMembers, subject)
        if values is not None:
            written["input"] = _paths(values, needed, subject, "input", "in its depends_on")
        if "trigger_rule" in written:
            _check_rule(written["trigger_rule"], needed, subject)
        self._steps[name] = written
        self._places.append(_caller())
        return Step(self, name)

    def output(self, mapping: ValueMap) -> None:
        """Set the members of the task's result. By default, the result is the outputs of the last steps."""
        subject = f"workflow {self.name!r}"
        self._output = _paths(mapping, self._steps, subject, "output", "a step of this workflow")

    def document(self) -> dict[str, Any]:
        """The document, as in a file. The document is a copy: changes do not affect the workflow."""
        head = {"name": self.name, **self._head, "steps": list(self._steps.values())}
        document = head if self._output is None else {**head, "output": self._output}
        copy: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
        return copy

    def where(self, path: tuple[str | int, ...]) -> str:
        """The source line, like `order.py:12`, of the part of the document at this path."""
        match path:
            case ("steps", int(number), *_) if number < len(self._places):
                return self._places[number]
        return self._place

    def _needed(self, depends_on: "Sequence[Step | str]", subject: str) -> list[str]:
        if isinstance(depends_on, Step | str):
            raise ConfigurationError(f"{subject}: depends_on is a list: depends_on=[{_name_of(depends_on)}]")
        needed: list[str] = []
        for each in depends_on:
            if isinstance(each, Step) and each.workflow is not self:
                raise ConfigurationError(f"{subject}: depends_on names {each!r}, which is not a step of {self.name}")
            name = _name_of(each)
            if name not in self._steps:
                raise ConfigurationError(
                    f"{subject}: depends_on names {name!r}, which is not an earlier step{_meant(name, self._steps)}"
                )
            if name in needed:
                raise ConfigurationError(f"{subject}: depends_on names {name!r} twice")
            needed.append(name)
        return needed


# -- checks -----------------------------------------------------------------------------------------------------------


def _members(members: Mapping[str, Any], kind: Any, subject: str) -> dict[str, Any]:
    """The members as plain JSON values. Raises ConfigurationError if one is unknown or has a wrong value."""
    known: dict[str, Any] = kind.__annotations__
    for key in members:
        if key not in known:
            raise ConfigurationError(f"{subject}: {key} is unknown{_meant(key, known)}")
        if f"{key}_ms" in members:
            raise ConfigurationError(f"{subject}: {key}_ms and {key} mean the same: remove one")
    return {key: _checked(value, known[key], subject, key) for key, value in members.items()}


def _checked(value: Any, kind: Any, subject: str, key: str) -> Any:
    if is_typeddict(kind) and isinstance(value, Mapping):
        return _members(value, kind, f"{subject}: {key}")
    try:
        plain = msgspec.json.decode(msgspec.json.encode(value))
        msgspec.convert(plain, kind)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{subject}: {key} is {value!r:.100}, {_remedy(kind, error)}") from None
    return plain


def _remedy(kind: Any, error: Exception) -> str:
    if get_origin(kind) is Literal:
        return f"not {' or '.join(get_args(kind))}"
    forms = [each.description for each in getattr(kind, "__metadata__", ()) if each.description]
    return f"not {forms[0]}" if forms else f"which is not possible: {error}"


def _paths(mapping: ValueMap, steps: Collection[str], subject: str, key: str, where: str) -> dict[str, str]:
    if not isinstance(mapping, Mapping):
        raise ConfigurationError(f"{subject}: {key} is {mapping!r:.100}, not a map of members to values")
    paths = {member: str(value) for member, value in mapping.items()}
    for member, path in paths.items():
        side, *parts = path.split(".")
        if side not in ("context", "results") or not all(parts) or (side == "results" and not parts):
            raise ConfigurationError(
                f"{subject}: {key}[{member!r}] is {path!r}, not a path like context.order_id or results.step.total"
            )
        if side == "results" and parts[0] not in steps:
            raise ConfigurationError(
                f"{subject}: {key}[{member!r}]: {parts[0]!r} is not {where}{_meant(parts[0], steps)}"
            )
    return paths


def _check_rule(rule: Any, needed: Collection[str], subject: str) -> None:
    """Check that the rule names only dependencies. The form of the rule is checked with the whole workflow."""
    if not isinstance(rule, Mapping):
        raise ConfigurationError(f"{subject}: trigger_rule holds {rule!r:.100}, not a rule like pay.failed")
    for key, value in rule.items():
        if key in ("all", "any", "none") and isinstance(value, list):
            for each in value:
                _check_rule(each, needed, subject)
        elif key in ("completed", "failed", "skipped", "result") and isinstance(value, str):
            name = value.split(".")[0]
            if name not in needed:
                raise ConfigurationError(
                    f"{subject}: trigger_rule names {name!r}, which is not in its depends_on{_meant(name, needed)}"
                )


def _name_of(step: "Step | str") -> str:
    return step.name if isinstance(step, Step) else step


def _meant(written: str, names: Collection[str]) -> str:
    nearest = difflib.get_close_matches(str(written), names, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def _caller() -> str:
    """The line of the caller outside this module, like `order.py:12`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
