"""The log events of the code and those of the table are the same."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import stepwire
import stepwire_broker
from stepwire.logs import step_ids
from stepwire.worker import events
from stepwire_broker.telemetry import BROKER_EVENTS, RUN_MEMBERS, WORKER_EVENTS, LogEvent
from stepwire_protocol.messages import StepMetadata, StepRequest

LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
ADDED_BY_LOGGING = {"exc_info", "extra"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class LogCall(NamedTuple):
    """A call that logs. `level` is None if the code chooses it at run time."""

    place: str
    logger: str | None
    level: str | None
    event: str
    members: frozenset[str]


def broker_calls() -> Iterator[LogCall]:
    """Every `log.<level>("event", member=…)` in the broker."""
    for path, tree in sources(stepwire_broker.__file__):
        logger = next((each for each in map(logger_of, ast.walk(tree)) if each is not None), None)
        for call, function in calls(tree):
            if isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS and is_logger(call.func.value):
                place = f"{path}:{call.lineno}"
                yield LogCall(place, logger, LEVELS[call.func.attr], text(call.args[0]), members_of(call, function))


def worker_calls() -> Iterator[LogCall]:
    """Every `….log("level", "event", member=…)`, every `_write("event", …)` of a run, and the failure of a worker."""
    for path, tree in sources(stepwire.__file__):
        for call, function in calls(tree):
            place = f"{path}:{call.lineno}"
            if isinstance(call.func, ast.Name) and call.func.id == "_write":
                yield LogCall(place, None, None, text(call.args[0]), frozenset(RUN_MEMBERS))
            if not isinstance(call.func, ast.Attribute):
                continue
            if call.func.attr == "log" and isinstance(call.func.value, ast.Attribute):
                if not isinstance(call.args[1], ast.Constant):
                    continue  # passes the event of the session on
                level = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
                yield LogCall(place, None, level, text(call.args[1]), members_of(call, function))
            elif call.func.attr in LEVELS and is_logger(call.func.value):
                (extra,) = (keyword.value for keyword in call.keywords if keyword.arg == "extra")
                assert isinstance(extra, ast.Dict)
                event = next(v for k, v in zip(extra.keys, extra.values, strict=True) if k and text(k) == "event")
                yield LogCall(place, None, LEVELS[call.func.attr], text(event), frozenset())


def differences(call: LogCall, events: tuple[LogEvent, ...]) -> Iterator[str]:
    """Where the call differs from the event of that name in the table."""
    event = next((each for each in events if each.name == call.event), None)
    if event is None:
        yield f"{call.place}: {call.event!r} is not in telemetry.py"
        return
    if call.level is not None and call.level not in event.levels:
        yield f"{call.place}: {call.event} is logged as {call.level}"
    required, allowed = set(event.members), {*event.members, *event.optional}
    if not required <= call.members <= allowed:
        yield f"{call.place}: the members of {call.event} differ from telemetry.py"


def sources(package_file: str | None) -> Iterator[tuple[str, ast.Module]]:
    assert package_file is not None
    directory = Path(package_file).parent
    for path in sorted(directory.rglob("*.py")):
        yield str(path.relative_to(directory)), ast.parse(path.read_text(encoding="utf-8"))


def calls(tree: ast.AST, function: Function | None = None) -> Iterator[tuple[ast.Call, Function | None]]:
    """Every call with the function that it is in."""
    for node in ast.iter_child_nodes(tree):
        inner = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.Call):
            yield node, function
        yield from calls(node, inner)


def is_logger(node: ast.expr) -> bool:
    """`log`, or `_log()`, which makes it late."""
    return (isinstance(node, ast.Name) and node.id == "log") or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_log"
    )


def logger_of(node: ast.AST) -> str | None:
    """The name in `structlog.get_logger("name")`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_logger":
        return text(node.args[0])
    return None


def members_of(call: ast.Call, function: Function | None) -> frozenset[str]:
    """The keywords of the call. `**facts` counts as the keys of the dictionary that the function assigns to it."""
    members: set[str] = set()
    for keyword in call.keywords:
        members |= {keyword.arg} if keyword.arg is not None else facts_of(keyword.value, function)
    return frozenset(members - ADDED_BY_LOGGING)


def facts_of(node: ast.expr, function: Function | None) -> frozenset[str]:
    assert isinstance(node, ast.Name), ast.unparse(node)
    assert function is not None
    for each in ast.walk(function):
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        value = getattr(each, "value", None)
        if isinstance(target, ast.Name) and target.id == node.id and isinstance(value, ast.Dict):
            return frozenset(text(key) for key in value.keys if key is not None)
    raise AssertionError(f"no dictionary is assigned to {node.id} in {function.name}")


def text(node: ast.expr) -> str:
    assert isinstance(node, ast.Constant), f"not a literal: {ast.unparse(node)}"
    assert isinstance(node.value, str)
    return node.value


# -- the tests --------------------------------------------------------------------------------------------------------


def test_every_event_of_the_broker_is_in_the_table_with_its_members() -> None:
    calls = list(broker_calls())
    assert [call for call in calls if call.logger not in BROKER_EVENTS] == []
    assert [text for call in calls for text in differences(call, BROKER_EVENTS[str(call.logger)])] == []


def test_every_event_of_a_worker_is_in_the_table_with_its_members() -> None:
    assert [text for call in worker_calls() for text in differences(call, WORKER_EVENTS)] == []


def test_every_event_of_the_table_is_logged() -> None:
    logged = {(call.logger, call.event) for call in broker_calls()}
    assert {(logger, event.name) for logger, events in BROKER_EVENTS.items() for event in events} == logged
    assert {event.name for event in WORKER_EVENTS} == {call.event for call in worker_calls()}


def test_a_run_has_the_members_of_the_table_as_attributes() -> None:
    step = StepRequest(
        step_id=1,
        task_id=1,
        step_name="s",
        handler_class="h",
        delivery=1,
        metadata=StepMetadata(attempt=0, retry_limit=0, timeout_ms=0, idempotency_key="k"),
    )
    assert tuple(step_ids(step)) == RUN_MEMBERS


def test_every_event_of_a_worker_has_a_sentence() -> None:
    of_runs = {"run_failed", "run_interrupted", "loop_blocked", "worker_failed", "session_opened"}
    assert {event.name for event in WORKER_EVENTS} - of_runs == set(events._SENTENCES)
