"""Generates the JSON Schema of every message from its type, for editors, validators and other languages.

`python -m stepwire_protocol.schema` writes the files in protocol/schema/; a test fails if they are out of date. A
schema describes members. SPEC.md and the vectors specify the rules for a whole message: no duplicate key, no integer
beyond 2^53 - 1 in business data, the maximum depth.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, inspect

from . import limits, messages, polling

DIRECTORY: Final = Path(__file__).parents[1] / "schema"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class SchemaDocument(NamedTuple):
    """One type of message, and its schema file: the file's name, the type, the sender, the topic."""

    name: str
    type: type[Struct]
    sender: str
    topic: str


_TO_BROKER: Final = "results@<broker> "
_TO_WORKER: Final = "@<worker> "

DOCUMENTS: Final = (
    SchemaDocument("hello", messages.Hello, "worker", "workers "),
    SchemaDocument("heartbeat", messages.Heartbeat, "worker", "workers "),
    SchemaDocument("bye", messages.Bye, "worker", "workers "),
    SchemaDocument("gone", messages.Gone, "worker", "workers "),
    SchemaDocument("accept", messages.Accept, "worker", _TO_BROKER),
    SchemaDocument("refuse", messages.Refuse, "worker", _TO_BROKER),
    SchemaDocument("start", messages.Start, "worker", _TO_BROKER),
    SchemaDocument("results", messages.Results, "worker", _TO_BROKER),
    SchemaDocument("adopted", messages.Adopted, "worker", _TO_BROKER),
    SchemaDocument("progress", messages.Progress, "worker", _TO_BROKER),
    SchemaDocument("here", messages.Here, "broker", "brokers "),
    SchemaDocument("welcome", messages.Welcome, "broker", _TO_WORKER),
    SchemaDocument("heartbeat_ack", messages.HeartbeatAck, "broker", _TO_WORKER),
    SchemaDocument("steps", messages.Steps, "broker", _TO_WORKER),
    SchemaDocument("go", messages.Go, "broker", _TO_WORKER),
    SchemaDocument("cancel", messages.Cancel, "broker", _TO_WORKER),
    SchemaDocument("ack", messages.Ack, "broker", _TO_WORKER),
    SchemaDocument("adopt", messages.Adopt, "broker", _TO_WORKER),
    SchemaDocument("reset", messages.Reset, "broker", _TO_WORKER),
    SchemaDocument("refused", messages.Refused, "broker", _TO_WORKER),
    SchemaDocument("level0_steps", messages.StepsLevel0, "broker", "steps "),
    SchemaDocument("level0_results", messages.ResultsLevel0, "worker", "results "),
)

_ON: Final = "POST /v1/worker/{}"

OVER_HTTP: Final = tuple(
    SchemaDocument(f"http_{call}{suffix}", kind, sender, _ON.format(call))
    for call, body, answer in (
        ("lease", polling.LeaseCall, polling.Leased),
        ("heartbeat", polling.HeartbeatCall, polling.HeartbeatAnswer),
        ("start", polling.StartCall, polling.StartAnswer),
        ("results", polling.ResultsCall, polling.ResultsAnswer),
        ("bye", polling.ByeCall, polling.ByeAnswer),
    )
    for suffix, kind, sender in (("", body, "worker"), ("_answer", answer, "broker"))
)


def files() -> dict[str, str]:
    """The text of every schema file by file name."""
    written = {f"{document.name}.json": _text(_of_one(document)) for document in (*DOCUMENTS, *OVER_HTTP)}
    written["bundle.json"] = _text(_of_all())
    return written


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in files().items():
        (DIRECTORY / name).write_text(text)
    sys.stdout.write(f"{len(files())} files in {DIRECTORY}\n")


def _of_one(document: SchemaDocument) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    _schema(inspect.type_info(document.type), definitions)
    own = definitions.pop(document.type.__name__)
    return {
        "$schema": _DIALECT,
        "$id": f"stepwire:{limits.PROTOCOL_LEVEL_1}:{document.name}",
        **own,
        "description": f"From the {document.sender}, on `{document.topic}`. {own['description']}",
        **({"$defs": definitions} if definitions else {}),
    }


def _of_all() -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    schemas = [_schema(inspect.type_info(document.type), definitions) for document in DOCUMENTS]
    return {
        "$schema": _DIALECT,
        "$id": f"stepwire:{limits.PROTOCOL_LEVEL_1}",
        "title": "Stepwire",
        "description": "Any message of the protocol, of both levels and both directions.",
        "oneOf": schemas,
        "$defs": dict(sorted(definitions.items())),
    }


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


# -- types to schemas -------------------------------------------------------------------------------------------------

_NUMBER_BOUNDS: Final = {"ge": "minimum", "le": "maximum"}
_STRING_BOUNDS: Final = {"min_length": "minLength", "max_length": "maxLength"}
_LIST_BOUNDS: Final = {"min_length": "minItems", "max_length": "maxItems"}


def _schema(kind: inspect.Type, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type. A struct is added to `definitions` and referenced."""
    match kind:
        case inspect.StructType():
            return _reference(kind, definitions)
        case inspect.Metadata():
            return _schema(kind.type, definitions)
        case inspect.IntType():
            return {"type": "integer", **_bounds(kind, _NUMBER_BOUNDS)}
        case inspect.FloatType():
            return {"type": "number", **_bounds(kind, _NUMBER_BOUNDS)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.NoneType():
            return {"type": "null"}
        case inspect.StrType():
            # Python's `$` also matches before a final line end; the `$` of JSON Schema does not.
            pattern = {"pattern": kind.pattern.replace(r"(?!\n)$", "$")} if kind.pattern else {}
            return {"type": "string", **_bounds(kind, _STRING_BOUNDS), **pattern}
        case inspect.LiteralType():
            return {"enum": list(kind.values)}
        case inspect.ListType():
            return {"type": "array", "items": _schema(kind.item_type, definitions), **_bounds(kind, _LIST_BOUNDS)}
        case inspect.TupleType():
            items = [_schema(item, definitions) for item in kind.item_types]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        case inspect.DictType():
            names = _schema(kind.key_type, definitions)
            del names["type"]
            values = {"additionalProperties": _schema(kind.value_type, definitions)}
            return {"type": "object", **({"propertyNames": names} if names else {}), **values}
        case inspect.UnionType():
            options = [_schema(option, definitions) for option in kind.types]
            return options[0] if len(options) == 1 else {"anyOf": options}
        case inspect.RawType() | inspect.AnyType():
            return {}
    raise TypeError(f"schema.py has no rule for {kind}; add one to _schema")


def _bounds(kind: inspect.Type, names: dict[str, str]) -> dict[str, Any]:
    return {name: bound for field, name in names.items() if (bound := getattr(kind, field)) is not None}


# Rules of the codec for a whole message. A level-0 message has no `type`.
_RULES: Final[dict[type, dict[str, Any]]] = {
    messages.StepsLevel0: {"not": {"required": ["type"]}},
    messages.ResultsLevel0: {
        "not": {"required": ["type"]},
        "anyOf": [
            {"required": ["protocol_version", "results"], "properties": {"results": {"minItems": 1}}},
            {"required": ["error"]},
        ],
    },
}


def _reference(kind: inspect.StructType, definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.cls.__name__
    if name not in definitions:
        definitions[name] = {}  # reserves its place
        properties = {field.encode_name: _member(field, definitions) for field in kind.fields}
        required = [field.encode_name for field in kind.fields if field.required]
        if kind.tag_field is not None:
            properties = {kind.tag_field: {"const": kind.tag}, **properties}
            required = [kind.tag_field, *required]
        if kind.cls in (messages.Results, polling.ResultsCall):
            # Level 0 shares the type of a result, and has no deliveries.
            properties["results"]["items"]["required"] = ["delivery"]
        definitions[name] = {
            "title": name,
            "description": " ".join((kind.cls.__doc__ or "").split()),
            "type": "object",
            "properties": properties,
            "required": required,
            **_RULES.get(kind.cls, {}),
        }
    return {"$ref": f"#/$defs/{name}"}


def _member(field: inspect.Field, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(field.type, definitions)
    if field.default is not msgspec.NODEFAULT and field.default is not msgspec.UNSET:
        schema["default"] = json.loads(msgspec.json.encode(field.default))
    elif field.default_factory is not msgspec.NODEFAULT:
        schema["default"] = field.default_factory()
    return schema


if __name__ == "__main__":
    main()
