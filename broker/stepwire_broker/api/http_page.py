"""Generates docs/reference/http.md, the API as a page for people, from the OpenAPI document and the tables of codes."""

from collections.abc import Iterator
from typing import Any, Final

from stepwire_broker.core import why
from stepwire_broker.core.answers.hints import HintCode

from . import hints, http_problems, openapi
from .openapi_schemas import ONE_OF
from .operations import ANY_REQUEST, OPERATIONS, Operation


def page() -> str:
    """docs/reference/http.md"""
    document = openapi.document()
    lines = ["# HTTP", "", _INTRODUCTION, "", f"Any request may be answered {_list(ANY_REQUEST)}."]
    for (method, path), operation in OPERATIONS.items():
        lines += _operation(f"{method} {path}", operation, document["paths"][path][method.lower()])
    lines += ["", "# Documents"]
    for name, schema in document["components"]["schemas"].items():
        lines += _document(name, schema)
    lines += _codes()
    return "\n".join([*lines, ""])


def _operation(name: str, operation: Operation, described: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## {name}", "")
    scopes = " and ".join(f"`{scope}`" for scope in operation.scopes)
    yield f"{operation.summary} Scope: {scopes}." if scopes else operation.summary
    if described.get("parameters"):
        yield from ("", "| parameter | in | meaning |", "|---|---|---|")
        for each in described["parameters"]:
            required = ", required" if each["required"] and each["in"] != "path" else ""
            text = each["description"].replace("|", "\\|")
            if "$ref" in each["schema"]:
                text += f" {_type(each['schema'])}."
            yield f"| `{each['name']}` | {each['in']}{required} | {text}{_range(each['schema'])} |"
    if operation.body is not None:
        need = "Body" if operation.is_body_needed else "Body, optional"
        schema = described["requestBody"]["content"][operation.body_types[0]]["schema"]
        yield from ("", f"{need} ({' or '.join(operation.body_types)}): {_type(schema)}")
    yield ""
    for status, answer in described["responses"].items():
        if int(status) in operation.answers:
            kind, content = next(iter(answer["content"].items()))
            yield f"- **{status}** `{kind}`: {_type(content['schema'])}"
    problems = [status for status in operation.problems if status not in operation.answers]
    if problems:
        yield f"- problems: {_list(sorted(problems))}"


def _document(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"## {name}")
    if "description" in schema:
        yield from ("", " ".join(schema["description"].split()))
    if "enum" in schema:
        yield from ("", f"One of: {', '.join(f'`{value}`' for value in schema['enum'])}.")
        return
    yield from ("", "| member | type | |", "|---|---|---|")
    required = schema.get("required", ())
    for member, kind in schema.get("properties", {}).items():
        text = kind.get("description", "")
        need = (
            "" if member in required else f"optional. {text.rstrip('.')}" if text.startswith("Default") else "optional"
        )
        yield f"| `{member}` | {_type(kind)} | {need} |"


def _codes() -> Iterator[str]:
    yield from ("", "# Codes", "", "## Codes of problems", "", "| code | status |", "|---|---|")
    for code, number in http_problems.STATUS.items():
        yield f"| `{code}` | {number} |"
    yield from ("", _FORM, "", "## Codes of reasons", "")
    yield "Why a step or a task is in its state: `code` of `/why`, and of the `reason` of open steps."
    yield from ("", "| code | meaning |", "|---|---|")
    for reason, meaning in why.CODES.items():
        yield f"| `{reason}` | {meaning} |"
    yield from ("", "## Codes of hints", "")
    yield "The next action: `code` of the member `next` of problems and reasons. `hint` is the same as text."
    yield from ("", "| code | text |", "|---|---|")
    for hint in HintCode:
        yield f"| `{hint}` | {hints.template(hint)} |"


def _list(statuses: Any) -> str:
    return ", ".join(f"{status} ({http_problems.TITLES[status].lower()})" for status in statuses)


def _range(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return f" One of {', '.join(f'`{value}`' for value in schema['enum'])}."
    if "maximum" in schema and schema["maximum"] < 2**53 - 1:
        return f" {schema.get('minimum', 0)} to {schema['maximum']}."
    return ""


def _type(schema: dict[str, Any]) -> str:
    """A short name of the type."""
    match schema:
        case {"$ref": ref}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"x-event": name}:
            return f"server-sent events, the data of each [{name}](#{name.lower()})"
        case {"nullable": True, "type": _} | {"nullable": True, "allOf": _}:
            return f"{_type({key: value for key, value in schema.items() if key != 'nullable'})} or null"
        case {"allOf": [inner]}:
            return _type(inner)
        case {"x-tuple": positions}:
            return f"list of {len(positions)}: {', '.join(map(_type, positions))}"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": kind}:
            return str(kind)
        case {"description": text} if text.startswith(ONE_OF):
            return str(text).removeprefix(ONE_OF).rstrip(".").replace(", ", " or ")
        case _:
            return "any JSON"


_INTRODUCTION: Final = """
Generated from the code by `python -m stepwire_broker.api.reference`; `GET /openapi.json` is the same for programs.

Every route except `/livez` needs `Authorization: Bearer <token>`. The token of a broker without configuration is in
`.stepwire/token` and has full access. Other tokens (`stepwire token new`) may do only what their scopes allow:
`read`, which includes `metrics`, `inspect`, `submit`, `work`, `operate`, or `admin`, which includes all of them. A
missing scope is a 403 with the code `scope_missing`. Without `inspect`, payloads are absent from answers: contexts,
outputs, results, handler configuration, backtraces and standard error. Bodies are JSON with names in snake_case,
times are RFC 3339 in UTC, ids are integers below 2^53. An error is `application/problem+json`: `code` names the
problem for programs, and `detail` describes it for people. `hint` (for people) and `next` (for programs) describe the
next action.
""".strip()
_FORM: Final = (
    "A malformed request has a code of its own (`bad_field`, `bad_query`, `too_large`, …) with the status 400 or 413."
)
