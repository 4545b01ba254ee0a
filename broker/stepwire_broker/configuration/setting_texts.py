"""What every setting is for, in a sentence: for the reference, the schema, and the file that `config init` writes."""

from typing import Any, Final

import msgspec

from stepwire_broker.core.definitions import durations
from stepwire_broker.core.definitions.settings import Settings

from . import seed_block
from .loader import KEYS, PREFIX, value_of

ABOUT: Final[dict[str, str]] = {
    "broker.id": "This broker's name; its workers know it by this. Letters, digits and -.",
    "broker.drain_timeout_ms": "How long running steps may take to finish when the broker is told to stop.",
    "database.url": "Where the state lies. `DATABASE_URL` is honoured too.",
    "database.pool_size": "Connections that only read.",
    "bus.steps": "Where steps are published and handlers connect: ipc://, tcp:// or inproc://.",
    "bus.results": "Where handlers send their results.",
    "bus.batch.max_steps": "Steps in one message at most.",
    "bus.batch.max_bytes": "Size of one such message at most.",
    "bus.heartbeat_ms": "How often workers say that they live. At most a fifth of the lease.",
    "bus.lease_ms": "After so long without a word of a worker, its steps go to others.",
    "bus.steps_hwm": "Messages that may wait for one slow subscriber.",
    "bus.results_hwm": "Messages of one worker that may wait for the broker.",
    "bus.level0.handlers": "Handler classes that may go to handlers without sessions. Patterns, with ** for any.",
    "bus.level0.at_most_once": "May they get at_most_once steps too?",
    "bus.level0.batch_max_steps": "Steps that one of them gets at a time.",
    "bus.allow_insecure": "Listen on the network without encryption: everybody there can read and send everything.",
    "bus.advertise": "The host that workers are told to go to. Without it what is listened on, or this host's name.",
    "bus.lost_sessions_max": "A step fails once so many workers were lost while they ran it.",
    "bus.max_message_bytes": "A larger message is refused.",
    "execution.default_execution_mode": "Where a step without labels runs: distributed, to executors, or local, in "
    "this process. Unset: distributed, unless the bus is inproc only.",
    "execution.default_executor": "Who gets a distributed step that no rule matches.",
    "execution.on_missing": "A step that is to be distributed, and no executor there: error, or local after all.",
    "execution.rules": "Which steps go where, by path (namespace::workflow::step). The first that matches wins.",
    "executors.local.modules": "Python workers to run in this process: package.module:worker.",
    "executors.local.threads": "Handlers of theirs at a time.",
    "executors.exec.commands": "By handler_class, or a pattern: the program and its arguments, or a map of argv, "
    "cwd, env and shadow_safe. Step on stdin, output on stdout.",
    "executors.exec.slots": "Programs at a time.",
    "executors.exec.runs_dir": "What runs is recorded there, so that a restarted broker can end it. Each broker has "
    "its own.",
    "executors.poll.enabled": "May handlers lease steps over HTTP?",
    "executors.options": "Options of further executors, by their key.",
    "dispatch.unroutable_after_ms": "After so long without anybody who could take a step, an alarm is raised.",
    "dispatch.breaker.enabled": "Give a handler whose infrastructure fails nothing for a while?",
    "dispatch.breaker.failure_threshold": "So many failures of infrastructure in a row open a handler's breaker.",
    "dispatch.breaker.window_ms": "The time in which outcomes are counted.",
    "dispatch.breaker.window_outcomes": "So many outcomes in that time, at the least, to judge by their share.",
    "dispatch.breaker.window_percent": "Such a share of failures among them opens it, too.",
    "dispatch.breaker.open_ms": "How long it stays open at first; doubled each time.",
    "dispatch.breaker.open_max_ms": "How long at most.",
    "dispatch.breaker.success_threshold": "So many steps are tried at a time then; so many that succeed close it.",
    "dispatch.retry_budget.percent": "Retries of a handler among its starts, at most; 100 is without a bound.",
    "dispatch.retry_budget.at_least": "So many are always allowed.",
    "dispatch.retry_budget.window_ms": "The time in which both are counted.",
    "http.listen": "The address of the HTTP API.",
    "http.tokens_file": "The API's tokens, one a line, or `sha256:` and the digest. Without it one is generated.",
    "http.hosts": "Names that a request's Host may say, besides `listen` and the loopback.",
    "http.allow_insecure": "Listen on the network without TLS: a proxy ends it, or the network is trusted.",
    "limits.max_open_steps": "Steps that are not over yet; more are refused.",
    "limits.max_active_tasks": "Tasks in memory; the rest waits in the database.",
    "limits.active_bytes": "Contexts and outputs kept in memory.",
    "limits.uncommitted_bytes": "Writes that wait for the database; beyond that nothing more is accepted.",
    "limits.payload_bytes": "A larger context or output is refused.",
    "limits.resident_payload_bytes": "A larger context or output is read when it is needed, and not kept in memory.",
    "limits.steps_per_workflow": "A workflow with more steps is refused.",
    "limits.edges_per_workflow": "A workflow with more dependencies is refused.",
    "limits.tasks_per_batch": "Tasks in one submission.",
    "retention.completed_ms": "How long completed tasks are kept.",
    "retention.failed_ms": "How long failed and cancelled tasks are kept.",
    "log_level": "The least level that is logged: debug, info, warning or error. HUP reads it again.",
}
assert ABOUT.keys() == KEYS.keys(), ABOUT.keys() ^ KEYS.keys()


def sections() -> list[tuple[str, list[str]]]:
    """Each with its keys; what is in a section itself comes before the sections in it."""
    found: dict[str, list[str]] = {}
    for key in KEYS:
        found.setdefault(key.rpartition(".")[0], []).append(key)
    return list(found.items())


def default_of(key: str) -> Any:
    value = value_of(Settings(), key)
    return list(value) if isinstance(value, tuple) else value


def unit_of(key: str) -> str:
    return "ms" if key.endswith("_ms") else "bytes" if key.endswith("_bytes") else ""


def environment_of(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def sample_file() -> str:
    """A configuration file that says everything and changes nothing."""
    lines = [
        "# Stepwire's configuration. Everything here is the default: take away the # of what you want to change.",
        "# A key that ends in _ms may be written without that, as a duration: lease: 10s",
        "# `stepwire config validate` checks it, `stepwire config show --origin` says where each value is from.",
    ]
    written: set[str] = set()
    for section, names in sections():
        path = section.split(".") if section else []
        for depth in range(len(path)):
            head = ".".join(path[: depth + 1])
            if head not in written:
                lines += [] if depth else [""]
                lines.append(f"{'  ' * depth}{path[depth]}:")
                written.add(head)
        lines += [] if path else [""]
        for key in names:
            name = key.rpartition(".")[2]
            lines.append(f"{'  ' * len(path)}# {ABOUT[key]}")
            lines.append(f"{'  ' * len(path)}# {name}: {msgspec.json.encode(default_of(key)).decode()}")
    return "\n".join(lines) + "\n"


def schema() -> dict[str, Any]:
    """The configuration file as JSON Schema, for editors."""
    root = _object("The configuration of a Stepwire broker.")
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    for key, kind in KEYS.items():
        *path, name = key.split(".")
        at = root
        for section in path:
            at = at["properties"].setdefault(section, {**_object(""), "type": ["object", "null"]})
        (of_type,) = msgspec.json.schema_components([kind])[0]
        at["properties"][name] = {**of_type, "description": ABOUT[key], "default": default_of(key)}
        if name.endswith("_ms"):
            about = f"{ABOUT[key]} A duration like 30s, 5m or 7d."
            duration = {"type": "string", "pattern": durations.PATTERN, "description": about}
            at["properties"][name.removesuffix("_ms")] = duration
            at.setdefault("allOf", []).append({"not": {"type": "object", "required": [name, name.removesuffix("_ms")]}})
    block = _object("Keys of an earlier form, taken over.")
    block["properties"] = dict.fromkeys(seed_block.NAMES, True)
    root["properties"][seed_block.BLOCK] = block
    return root


def _object(about: str) -> dict[str, Any]:
    described = {"description": about} if about else {}
    return {"type": "object", **described, "properties": {}, "additionalProperties": False}
