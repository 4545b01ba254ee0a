"""Schemas in the form that client generators understand: OpenAPI 3.0, from the JSON Schema that msgspec makes of types.

JSON Schema describes tuples, null, and members that hold raw JSON in ways that generators refuse or read wrongly. See
docs/decisions/0023-openapi-3-0-for-generators.md.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Meta
from stepwire_protocol import limits

REFERENCE: Final = "#/components/schemas/{name}"
ONE_OF: Final = "One of: "  # begins the description of a member that may have several types
INT32_MAX: Final = 2**31 - 1

Schema = dict[str, Any]

_FREE: Final[Schema] = {"type": "object", "additionalProperties": True}

# The types of members that are stored and sent as raw JSON, by the member's name.
RAW_MEMBERS: Final[dict[str, Schema]] = {
    "context": _FREE,
    "detail": _FREE,
    "document": _FREE,
    "error": {"anyOf": [{"$ref": REFERENCE.format(name="ErrorDetail")}, {"type": "null"}]},
    "handler_config": _FREE,
    "input": {},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "message": {},
    "output": {},
    "previous_results": _FREE,
    "result": {},
    "task_context": _FREE,
}
# In Python, `$` also matches before a line break at the end. In other languages it does not, and Go has no lookahead.
_NO_LINE_BREAK: Final = r"(?!\n)$"
_UNKNOWN_TO_3_0: Final = ("contentSchema", "propertyNames", "title")


def one_of(name: str, values: object) -> Meta:
    """Annotate a `str` whose value is one of `values`. The values become a schema with this name."""
    return Meta(title=name, extra_json_schema={"enum": [str(value) for value in values]})  # type: ignore[attr-defined]


def components_of(schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Convert the components, and add one for each enumeration with a title. Sorted by name."""
    enums: dict[str, Schema] = {}
    converted = {name: _component(name, schema, enums) for name, schema in schemas.items()}
    return dict(sorted((converted | enums).items()))


def converted(schema: Schema, enums: dict[str, Schema] | None = None) -> Schema:
    """Convert a schema and everything in it. Enumerations with a title move to `enums`, and are referred to."""
    enums = {} if enums is None else enums
    if "$ref" in schema:
        return dict(schema)
    if "anyOf" in schema:
        return _union(schema, enums)
    if "prefixItems" in schema:
        return _tuple(schema, enums)
    if "enum" in schema:
        return _enumeration(schema, enums)
    result = {key: value for key, value in schema.items() if key not in _UNKNOWN_TO_3_0}
    if result.get("required") == []:
        del result["required"]  # OpenAPI 3.0 permits no empty list here
    if "pattern" in result:
        result["pattern"] = result["pattern"].replace(_NO_LINE_BREAK, "$")
    if result.get("type") == "integer":
        result = _integer(result)
    if result.get("type") == "number":
        result["format"] = "double"
    if result.get("type") == "object" and "properties" not in result:
        result.setdefault("additionalProperties", True)  # generators take an object without members for an empty one
    if "properties" in result:
        result["properties"] = {name: _member(name, of, enums) for name, of in result["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), dict):
            result[key] = converted(result[key], enums)
    return result


def _component(name: str, schema: Schema, enums: dict[str, Schema]) -> Schema:
    if "enum" in schema:  # an enumeration class: msgspec makes a component of it already
        return _plain_enumeration(schema)
    return converted(schema, enums)


def _member(name: str, schema: Schema, enums: dict[str, Schema]) -> Schema:
    if _is_raw(schema):
        schema = RAW_MEMBERS[name]
    result = converted(schema, enums)
    # One generator takes a member with a default for one that must be sent, so the default is a text.
    default = result.pop("default", None)
    if default is not None and "$ref" not in result:
        result["description"] = f"Default: {msgspec.json.encode(default).decode()}."
    return result


def _is_raw(schema: Schema) -> bool:
    """True if msgspec knows nothing of the member's type: it is `Raw`, `Any`, or one of them or null."""
    kinds = schema.get("anyOf", [schema])
    return all(kind in ({}, {"type": "null"}) or set(kind) == {"default"} for kind in kinds)


def _union(schema: Schema, enums: dict[str, Schema]) -> Schema:
    kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    around = {key: value for key, value in schema.items() if key not in ("anyOf", *_UNKNOWN_TO_3_0)}
    if {kind.get("type") for kind in kinds} == {"integer", "number"}:
        kinds = [kind for kind in kinds if kind["type"] == "number"]
    if len(kinds) > 1:
        # No two generators agree on unions, so the schema permits any JSON and names the kinds.
        kinds, around = [{"description": f"{ONE_OF}{', '.join(_name_of(kind) for kind in kinds)}."}], {}
    result = converted(kinds[0], enums)
    if len(kinds) == len(schema["anyOf"]):
        return result | around
    if "$ref" in result:
        result = {"allOf": [result]}  # in OpenAPI 3.0 a reference has no members beside it
    return result | {"nullable": True} | around


def _name_of(kind: Schema) -> str:
    return f"list of {_name_of(kind['items'])}" if kind.get("type") == "array" else str(kind.get("type", "object"))


def _tuple(schema: Schema, enums: dict[str, Schema]) -> Schema:
    """A list of as many items as the tuple has. Positions of one type keep it; `x-tuple` names all of them."""
    positions = [converted(each, enums) for each in schema["prefixItems"]]
    is_uniform = all(each == positions[0] for each in positions)
    return {
        "type": "array",
        "minItems": len(positions),
        "maxItems": len(positions),
        "items": positions[0] if is_uniform else {},
        "x-tuple": positions,
    }


def _enumeration(schema: Schema, enums: dict[str, Schema]) -> Schema:
    if "title" not in schema:
        return _plain_enumeration(schema)
    enums[schema["title"]] = _plain_enumeration(schema)
    return {"$ref": REFERENCE.format(name=schema["title"])}


def _plain_enumeration(schema: Schema) -> Schema:
    return {"type": "string"} | {key: value for key, value in schema.items() if key not in _UNKNOWN_TO_3_0}


def _integer(schema: Schema) -> Schema:
    """Without a format, generators take 32 bits."""
    is_small = schema.get("minimum", -limits.INTEGER_MAX) >= -INT32_MAX and schema.get("maximum", 2**53) <= INT32_MAX
    return schema | {"format": "int32" if is_small else "int64"}
