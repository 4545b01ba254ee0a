"""docs/reference/http.md: the API as a page for people, drawn from its OpenAPI document and the tables of its codes."""

from collections.abc import Iterator
from typing import Any, Final

from stepwire_broker.core import explain

from . import http_problems, openapi
from .operations import GATE, OPERATIONS


def page() -> str:
    """docs/reference/http.md"""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    whole = openapi.document()
    yield "# HTTP"
    yield ""
    yield _INTRODUCTION
    yield ""
    yield f"Any request may be answered {_list(GATE)}."
    for (method, path), operation in OPERATIONS.items():
        yield ""
        yield f"## {method} {path}"
        yield ""
        yield operation.says if operation.scope is None else f"{operation.says} Scope: `{operation.scope}`."
        said = whole["paths"][path][method.lower()]
        if said.get("parameters"):
            yield ""
            yield "| parameter | in | says |"
            yield "|---|---|---|"
            for each in said["parameters"]:
                required = ", required" if each["required"] and each["in"] != "path" else ""
                text = each["description"].replace("|", "\\|")
                yield f"| `{each['name']}` | {each['in']}{required} | {text}{_range(each['schema'])} |"
        if operation.body is not None:
            yield ""
            need = "Body" if operation.is_body_needed else "Body, if any"
            schema = said["requestBody"]["content"][operation.body_types[0]]["schema"]
            yield f"{need} ({' or '.join(operation.body_types)}): {_shown(schema)}"
        yield ""
        for status, answer in said["responses"].items():
            if int(status) in operation.answers:
                kind, content = next(iter(answer["content"].items()))
                yield f"- **{status}** `{kind}`: {_shown(content['schema'])}"
        refused = [status for status in operation.problems if status not in operation.answers]
        if refused:
            yield f"- refused: {_list(sorted(refused))}"
    yield ""
    yield "# Documents"
    for name, schema in whole["components"]["schemas"].items():
        yield ""
        yield f"## {name}"
        if "description" in schema:
            yield ""
            yield " ".join(schema["description"].split())
        yield ""
        yield "| member | type | |"
        yield "|---|---|---|"
        required = schema.get("required", ())
        for member, of in schema.get("properties", {}).items():
            yield f"| `{member}` | {_shown(of)} | {'' if member in required else 'optional'} |"
    yield ""
    yield "# Codes"
    yield ""
    yield "## Of problems"
    yield ""
    yield "| code | status |"
    yield "|---|---|"
    for code, number in http_problems.STATUS.items():
        yield f"| `{code}` | {number} |"
    yield ""
    yield _FORM
    yield ""
    yield "## Of reasons"
    yield ""
    yield "Why a step or a task stands where it stands: `code` of `/why`, and of the `reason` of open steps."
    yield ""
    yield "| code | says |"
    yield "|---|---|"
    for reason, says in explain.CODES.items():
        yield f"| `{reason}` | {says} |"
    yield ""


def _list(statuses: Any) -> str:
    return ", ".join(f"{status} ({http_problems.TITLES[status].lower()})" for status in statuses)


def _range(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return f" One of {', '.join(f'`{value}`' for value in schema['enum'])}."
    if "maximum" in schema and schema["maximum"] < 2**53 - 1:
        return f" {schema.get('minimum', 0)} to {schema['maximum']}."
    return ""


def _shown(schema: dict[str, Any]) -> str:
    """A type in a word or two."""
    match schema:
        case {"$ref": ref}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"contentSchema": of}:
            return f"server-sent events, the data of each {_shown(of)}"
        case {"anyOf": kinds}:
            return " or ".join(map(_shown, kinds))
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"type": "array", "items": items}:
            return f"list of {_shown(items)}"
        case {"type": kind}:
            return str(kind)
        case _:
            return "any JSON"


_INTRODUCTION: Final = """
Generated from the code by `python -m stepwire_broker.api.reference`; `GET /openapi.json` is the same for programs.

Every route but `/livez` wants `Authorization: Bearer <token>`; the token of a broker without configuration lies in
`.stepwire/token` and may everything. Others (`stepwire token new`) may what their scopes say: `read`, `submit`,
`work`, `operate`, or `admin`, which is all of them; what is missing is a 403 with the code `scope_missing`. Bodies are
JSON with names in snake_case, times are RFC 3339 in UTC, ids are integers below 2^53. An error is
`application/problem+json`: `code` is for programs, `detail` says what is wrong, `hint` what to do.
""".strip()
_FORM: Final = (
    "What is wrong with the form of a request has a code of its own (`bad_field`, `bad_query`, `too_large`, …) and 400"
    " or 413."
)
