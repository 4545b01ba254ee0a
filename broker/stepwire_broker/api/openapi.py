"""`/openapi.json` (3.1), generated from the table of operations and the types of the documents."""

import functools
import importlib.metadata
import re
from typing import Any, Final

import msgspec

from . import http_problems
from .http import HttpCall
from .http_problems import ProblemDocument
from .operations import (
    ANY_REQUEST,
    IN_HEADER,
    IN_PATH,
    IN_QUERY,
    OPERATIONS,
    RENAMED,
    Events,
    Operation,
    Parameter,
    Text,
)
from .replies import Reply, encode

REFERENCE: Final = "#/components/schemas/{name}"
OPEN: Final = frozenset({"/livez"})


async def show(call: HttpCall) -> Reply:
    call.query()
    return Reply(200, _encoded())


@functools.cache
def _encoded() -> bytes:
    return encode(document())


@functools.cache
def document() -> dict[str, Any]:
    types = _types()
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    schema_of = {_key(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stepwire",
            "version": importlib.metadata.version("stepwire"),
            "description": "Submit, observe and control tasks. Times are RFC 3339 in UTC.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7410"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types() -> list[Any]:
    """Every type that an operation accepts or returns, once."""
    types: dict[Any, Any] = {_key(ProblemDocument): ProblemDocument}
    for operation in OPERATIONS.values():
        for kind in (operation.body, *operation.answers.values()):
            if isinstance(kind, Events):
                kind = kind.of
            if kind is not None and not isinstance(kind, Text):
                types[_key(kind)] = kind
    return list(types.values())


def _key(kind: Any) -> str:
    return str(kind)


def _operation(method: str, path: str, operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    in_path = re.findall(r"{(\w+)}", path)
    parameters = [
        *(_parameter(name, "path", IN_PATH[name], True) for name in in_path),
        *(_parameter(name, "query", IN_QUERY[name], name in operation.required) for name in operation.query),
        *(_parameter(name, "header", IN_HEADER[name], False) for name in operation.headers),
    ]
    responses: dict[str, Any] = {
        str(status): {"description": _DESCRIBED.get(status, "Done."), "content": _content(answer, schema_of)}
        for status, answer in operation.answers.items()
    }
    if path not in OPEN:
        problem = {"application/problem+json": {"schema": schema_of[_key(ProblemDocument)]}}
        for status in sorted({*ANY_REQUEST, *operation.problems}):
            known = responses.setdefault(str(status), {"description": http_problems.TITLES[status], "content": {}})
            known["content"] |= problem
    described: dict[str, Any] = {
        "operationId": _name(method, path),
        "summary": operation.summary,
        "responses": dict(sorted(responses.items())),
    }
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        schema = schema_of[_key(operation.body)]
        content = {kind: {"schema": schema} for kind in operation.body_types}
        described["requestBody"] = {"required": operation.is_body_needed, "content": content}
    described["security"] = [] if operation.scope is None else [{"token": [str(operation.scope)]}]
    return described


def _parameter(name: str, where: str, parameter: Parameter, is_required: bool) -> dict[str, Any]:
    return {
        "name": RENAMED.get(name, name),
        "in": where,
        "required": is_required,
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _content(answer: Any, schema_of: dict[str, Any]) -> dict[str, Any]:
    match answer:
        case Text(content_type, _):
            return {content_type: {"schema": {"type": "string"}}}
        case Events(of):
            return {"text/event-stream": {"schema": {"type": "string", "contentSchema": schema_of[_key(of)]}}}
        case _:
            return {"application/json": {"schema": schema_of[_key(answer)]}}


def _name(method: str, path: str) -> str:
    words = [word for word in re.split(r"[/{}._]+", path.removeprefix("/v1")) if word]
    return "_".join([method.lower(), *words])


_DESCRIBED: Final = {200: "Done.", 201: "Stored.", 202: "Started.", 503: "Not available now."}
