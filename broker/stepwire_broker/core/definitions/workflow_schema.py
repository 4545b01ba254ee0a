"""The workflow format as JSON Schema, for editors: made from the readers that interpret a document.

The schema accepts every document that the validator accepts. Only `stepwire workflow validate` checks the rules that a
schema cannot express: names of other steps, cycles, and a retry limit that fits the delivery mode.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from stepwire_broker.core.reading import durations

from . import fields, step_reader, workflow
from .settings import LimitSettings

Schema: TypeAlias = dict[str, Any]

_WORD: Final = r"[^.]+"
_REF_RULE: Final = {"$ref": "#/$defs/rule"}

# Members that are read last, once the steps are known.
_OF_MEMBER: Final[dict[str, Schema]] = {
    "steps": {
        "type": "array",
        "minItems": 1,
        "maxItems": LimitSettings().steps_per_workflow,
        "items": {"$ref": "#/$defs/step"},
    },
    "trigger_rule": _REF_RULE,
}


def workflow_schema() -> Schema:
    """Return the JSON Schema of a workflow file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stepwire workflow",
        "description": "Steps and their dependencies. `stepwire workflow validate FILE` checks more than this schema.",
        **_map(workflow.WORKFLOW_READERS, OF_WORKFLOW, required=("name", "steps")),
        "$defs": {
            "step": {
                "description": "One step: a call of one handler.",
                **_map(step_reader.STEP_READERS, OF_STEP, required=("name", "handler_class")),
            },
            "backoff": _map(step_reader.BACKOFF_READERS, OF_BACKOFF),
            "rule": _rule(),
        },
    }


# The description of each member. A test checks that none is missing.

OF_WORKFLOW: Final[dict[str, str]] = {
    "name": "The name that tasks are submitted with.",
    "namespace": "The first part of every step path. May itself contain ::.",
    "version": "The content of a version never changes: other content needs another version.",
    "description": "For people.",
    "deadline_ms": "The time limit of the whole task, from its submission.",
    "worker_selector": "Labels that a worker must have, for every step without its own worker_selector.",
    "payloads": "sealed: clients and workers seal contexts, outputs and errors, and the broker reads only `clear`.",
    "steps": "The steps, in any order.",
    "output": "The task's result: members and the paths of their values. Default: the outputs of the last steps.",
}

OF_STEP: Final[dict[str, str]] = {
    "name": "The step's name in dependencies and paths.",
    "handler_class": "The handler that runs the step.",
    "description": "For people.",
    "depends_on": "Steps that must end before this step can begin.",
    "trigger_rule": "When the step runs, after its dependencies have ended. Default: when all dependencies completed.",
    "handler_config": "Passed to the handler unchanged.",
    "input": "Members and the paths of their values, passed to the handler instead of the task's context.",
    "delivery_mode": "at_most_once: the step never starts twice, unless an operator runs it again.",
    "on_unknown": "The treatment of an at_most_once step whose outcome is unknown.",
    "retry_limit": "Retries after the first attempt.",
    "retry_reported_failures": "Retry an at_most_once step after a failure that its handler reported.",
    "backoff": "The pause before the next attempt.",
    "timeout_ms": "The time limit of one run, from its start.",
    "queue_timeout_ms": "A step that is ready and does not start within this time fails.",
    "deadline_ms": "The time limit of all attempts together, from when the step was first ready.",
    "priority": "Steps with a higher number are dispatched first.",
    "worker_selector": "Labels that the worker must have, instead of the workflow's; {} for none.",
    "allow_failure": "The task can complete although this step failed.",
}

OF_BACKOFF: Final[dict[str, str]] = {
    "kind": "exponential doubles the pause with every attempt.",
    "base_ms": "The first pause.",
    "max_ms": "The longest pause.",
    "jitter": "full draws the pause evenly between 0 and the whole pause.",
}


def _map(readers: Mapping[str, fields.Reader], about: Mapping[str, str], required: tuple[str, ...] = ()) -> Schema:
    """A member that is not required may be null, which counts as absent; `…_ms` may be a duration without `_ms`."""
    properties: Schema = {}
    twice: list[Schema] = []
    for name, reader in readers.items():
        own = _OF_MEMBER.get(name) or _of_reader(reader)
        properties[name] = _described(about[name]) | (own if name in required else _or_null(own))
        other = name.removesuffix("_ms")
        if other != name:
            duration = {"type": ["string", "null"], "pattern": durations.PATTERN, "examples": ["30s", "5m", "7d"]}
            properties[other] = {**_described(f"{about[name]} A duration like 30s, 5m or 7d."), **duration}
        if name == "worker_selector":
            other = "workerSelector"
            properties[other] = properties[name] | {"deprecated": True}
        if other != name:
            twice.append({"not": {"required": [name, other]}})
    shape: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        shape["required"] = list(required)
    if twice:
        shape["allOf"] = twice
    return shape


def _described(about: str) -> Schema:
    return {"description": about}


def _or_null(schema: Schema) -> Schema:
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _of_reader(reader: fields.Reader) -> Schema:
    match reader:
        case fields.Integer(least, most):
            return {"type": "integer", "minimum": least, "maximum": most}
        case fields.OneOf(words):
            return {"type": "string", "enum": list(words)}
        case fields.Matching(pattern, _, characters_max):
            bound = {} if characters_max is None else {"maxLength": characters_max}
            return {"type": "string", "pattern": f"^(?:{pattern})$", **bound}
    return _OF_READER[reader]


_PATH: Final = {"type": "string", "pattern": rf"^{_WORD}(?:\.{_WORD})*$", "maxLength": fields.PATH_CHARACTERS_MAX}
_LABEL: Final = {"type": ["string", "number", "boolean"], "maxLength": fields.LABEL_CHARACTERS_MAX}

_OF_READER: Final[dict[fields.Reader, Schema]] = {
    fields.text: {"type": "string", "maxLength": fields.TEXT_CHARACTERS_MAX},
    fields.boolean: {"type": "boolean"},
    fields.any_map: {"type": "object"},
    fields.step_list: {"type": "array"},
    fields.step_names: {
        "type": "array",
        "uniqueItems": True,
        "items": {"type": "string", "pattern": f"^(?:{fields.NAME_PATTERN})$"},
    },
    fields.mapping: {
        "type": "object",
        "maxProperties": fields.MEMBERS_MAX,
        "additionalProperties": {
            "type": "string",
            "pattern": rf"^(?:context|results\.{_WORD})(?:\.{_WORD})*$",
            "maxLength": fields.PATH_CHARACTERS_MAX,
        },
    },
    fields.selector: {
        "anyOf": [
            {"type": "object", "maxProperties": fields.LABELS_MAX, "additionalProperties": _LABEL},
            {"const": "local"},
            {"type": "string", "pattern": r"^\s*[Ll][Oo][Cc][Aa][Ll]\s*$"},
        ]
    },
    step_reader.read_backoff: {"$ref": "#/$defs/backoff"},
}


def _rule() -> Schema:
    some = {"type": "array", "minItems": 1, "items": _REF_RULE}
    step = {"type": "string", "pattern": f"^(?:{fields.NAME_PATTERN})$"}
    forms = [_form(kind, some) for kind in fields.TREES] + [_form(kind, step) for kind in fields.ENDED]
    for side in ("context", "result"):
        alone = {"op": {"enum": list(fields.OPS_WITHOUT_VALUE)}}
        other = {"op": {"enum": [op for op in fields.OPS if op not in fields.OPS_WITHOUT_VALUE]}, "value": True}
        forms += [_form(side, _PATH, alone), _form(side, _PATH, other)]
    return {
        "description": "A condition on how other steps ended, and on values in the context and the outputs.",
        "oneOf": forms,
    }


def _form(kind: str, of_kind: Schema, others: Schema | None = None) -> Schema:
    properties = {kind: of_kind, **(others or {})}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
