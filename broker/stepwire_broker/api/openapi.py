"""`/openapi.json` (3.0), generated from the table of operations and the types of the documents."""

import functools
import importlib.metadata
import re
from typing import Any, Final

import msgspec

from . import examples, http_problems
from .http import HttpCall
from .http_problems import ProblemDocument
from .openapi_schemas import REFERENCE, Schema, components_of, converted
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

OPEN: Final = frozenset({"/livez"})
PROBLEM_TYPE: Final = "application/problem+json"

# The group of an operation, by the first part of its path. Generated clients make one module or class of each.
TAGS: Final[dict[str, tuple[str, str]]] = {
    "tasks": ("tasks", "Submit, list, explain and control tasks."),
    "steps": ("steps", "List steps of all tasks, and resolve held steps."),
    "events": ("events", "Follow the events of tasks and steps."),
    "workflows": ("workflows", "Apply and activate workflows."),
    "workers": ("workers", "List and drain workers, and show how much work waits for them."),
    "backlog": ("workers", ""),
    "worker": ("polling", "For workers over HTTP: lease steps and report their results."),
    "executors": ("executors", "List, pause and resume executors."),
    "route": ("routing", "Show and change where steps run."),
    "rules": ("routing", ""),
    "shadows": ("routing", ""),
    "breakers": ("breakers", "List and set the breakers of handlers."),
    "brokers": ("brokers", "List the brokers of the deployment and the lanes that each owns; move a lane."),
    "lanes": ("brokers", ""),
    "audit": ("audit", "Read the record of operators' actions."),
    "database": ("database", "Maintain the database."),
    "tap": ("bus", "Read the messages of the bus."),
    "metrics": ("broker", "Probes, metrics and this document."),
    "openapi.json": ("broker", ""),
    "health": ("broker", ""),
    "readyz": ("broker", ""),
    "livez": ("broker", ""),
}


async def show(call: HttpCall) -> Reply:
    call.query()
    return Reply(200, _encoded())


@functools.cache
def _encoded() -> bytes:
    return encode(document())


@functools.cache
def document() -> dict[str, Any]:
    types = _types()
    schemas, defined = msgspec.json.schema_components(types, ref_template=REFERENCE)
    components = components_of(defined)
    schema_of = {_key(kind): converted(schema) for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        described = _operation(path, operation, schema_of)
        examples.add_to(described, components)
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "Stepwire",
            "version": importlib.metadata.version("stepwire"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7410", "description": "A broker on this machine."}],
        "security": [{"token": []}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.values() if about],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {_problem_name(status): _problem(status, schema_of) for status in sorted(_problem_statuses())},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `stepwire token new`."}
            },
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


def _operation(path: str, operation: Operation, schema_of: dict[str, Schema]) -> dict[str, Any]:
    in_path = re.findall(r"{(\w+)}", path)
    parameters = [
        *(_parameter(name, "path", IN_PATH[name], True) for name in in_path),
        *(_parameter(name, "query", IN_QUERY[name], name in operation.required) for name in operation.query),
        *(_parameter(name, "header", IN_HEADER[name], False) for name in operation.headers),
    ]
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [TAGS[path.removeprefix("/v1").split("/")[1]][0]],
        "summary": _first_sentence(operation.summary),
        "description": operation.summary,
    }
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        schema = schema_of[_key(operation.body)]
        # Generators warn of a second content type. The reference for people names it.
        content = {operation.body_types[0]: {"schema": schema}}
        described["requestBody"] = {"required": operation.is_body_needed, "content": content}
    described["responses"] = _responses(path, operation, schema_of)
    described["security"] = [] if operation.scope is None else [{"token": []}]
    if operation.scope is not None:
        described["x-scope"] = " ".join(operation.scopes)
    return described


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.:]) ", text)[0].rstrip(".:")


def _parameter(name: str, where: str, parameter: Parameter, is_required: bool) -> dict[str, Any]:
    return {
        "name": RENAMED.get(name, name),
        "in": where,
        "required": is_required,
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _responses(path: str, operation: Operation, schema_of: dict[str, Schema]) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {"description": _DESCRIBED.get(status, "Done."), "content": _content(answer, schema_of)}
        for status, answer in operation.answers.items()
    }
    if path not in OPEN:
        for status in {*ANY_REQUEST, *operation.problems}:
            if str(status) in responses:
                responses[str(status)]["content"] |= _problem(status, schema_of)["content"]
            else:
                responses[str(status)] = {"$ref": f"#/components/responses/{_problem_name(status)}"}
    return dict(sorted(responses.items()))


def _content(answer: Any, schema_of: dict[str, Schema]) -> dict[str, Any]:
    match answer:
        case Text(content_type, _):
            return {content_type: {"schema": {"type": "string"}}}
        case Events(of):
            name = of.__name__
            about = f"Server-sent events. The data of each event is a {name}."
            return {"text/event-stream": {"schema": {"type": "string", "description": about, "x-event": name}}}
        case _:
            return {"application/json": {"schema": schema_of[_key(answer)]}}


def _problem_statuses() -> set[int]:
    return {*ANY_REQUEST, *(status for operation in OPERATIONS.values() for status in operation.problems)}


def _problem_name(status: int) -> str:
    return f"Problem{status}"


def _problem(status: int, schema_of: dict[str, Schema]) -> dict[str, Any]:
    title = http_problems.TITLES[status]
    example = {"title": title, "status": status, **examples.PROBLEMS[status]}
    content = {PROBLEM_TYPE: {"schema": schema_of[_key(ProblemDocument)], "example": example}}
    return {"description": f"{title}.", "content": content}


_DESCRIBED: Final = {200: "Done.", 201: "Stored.", 202: "Started.", 503: "Not available now."}
_ABOUT: Final = (
    "Submit, observe and control tasks. Times are RFC 3339 in UTC. Integers are below 2^53, so that every JSON parser"
    " reads them exactly. A later version may add members to documents and values to enumerations: clients ignore"
    " members that they do not know."
)
