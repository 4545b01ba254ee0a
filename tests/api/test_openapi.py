"""The OpenAPI document describes the API: it has every route, and every answer to a request is one that it declares.

The requests are generated from the document, with a share of nonsense.
"""

import functools
import http.client
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from stepwire_broker.api import openapi
from stepwire_broker.api.app import Application
from stepwire_broker.api.enumerations import REASONS, STREAM_KINDS
from stepwire_broker.api.operations import OPERATIONS
from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.model.states import StepState, TaskState

from .running_api import Api

DOCUMENT = openapi.document()


def as_json_schema(value: Any) -> Any:
    """The schemas as JSON Schema, which has no `nullable`. Tuples are checked by position."""
    if isinstance(value, list):
        return [as_json_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    schema = {name: as_json_schema(each) for name, each in value.items() if name not in ("nullable", "x-tuple")}
    if "x-tuple" in value:
        schema |= {"prefixItems": as_json_schema(value["x-tuple"]), "items": False}
    return {"anyOf": [schema, {"type": "null"}]} if value.get("nullable") is True else schema


SCHEMAS = as_json_schema({"schemas": DOCUMENT["components"]["schemas"]})
STREAMS = ("/v1/tap", "/v1/events")
# The worker is needed, and the handlers; and what may be retried or resolved stands just so for one order only.
SELDOM_TAKEN = (
    "/v1/lanes/{lane}/move",  # of another broker
    "/v1/workers/{worker}/drain",
    "/v1/breakers/{handler_class}",
    "/v1/tasks/{task_id}/retry",
    "/v1/steps/{step_id}/resolve",
    *(f"/v1/worker/{call}" for call in ("heartbeat", "start", "results")),  # of a session, of this database
)


def test_every_route_is_described_and_nothing_else(api: Api) -> None:
    described = {(method, path) for method, path in OPERATIONS}
    served = {
        (method, resource.path)
        for resource in Application(api.broker).resources
        for method in resource.methods
        if method != "HEAD"
    }
    assert described == served


def test_the_document_is_served_unchanged(api: Api) -> None:
    answer = api.call("GET", "/openapi.json")
    assert answer.status == 200
    assert answer.json == json.loads(json.dumps(DOCUMENT))
    assert answer.json["openapi"] == "3.0.3"


def nodes(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in the document with its path, except examples."""
    if isinstance(value, dict):
        yield path, value
        for name, each in value.items():
            if name != "example":
                yield from nodes(each, f"{path}/{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from nodes(each, f"{path}/{number}")


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, node in nodes(DOCUMENT):
        if "/schema" in path and not path.endswith(("/properties", "/schemas")):
            yield path, node


def operations() -> Iterator[dict[str, Any]]:
    for path in DOCUMENT["paths"].values():
        yield from path.values()


def test_every_reference_has_a_target() -> None:
    references = [node["$ref"] for _, node in nodes(DOCUMENT) if isinstance(node.get("$ref"), str)]
    assert len(references) > 100
    for reference in references:
        *_, room, name = reference.split("/")
        assert name in DOCUMENT["components"][room], reference
    for schema in SCHEMAS["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_integer_has_a_format_that_holds_its_bounds() -> None:
    integers = [(path, schema) for path, schema in schemas() if schema.get("type") == "integer"]
    assert len(integers) > 50
    for path, schema in integers:
        most = {"int32": 2**31 - 1, "int64": 2**53 - 1}[schema["format"]]
        assert -most <= schema.get("minimum", 0) <= schema.get("maximum", 0) <= most or "maximum" not in schema, path
        assert schema["format"] == "int64" or "maximum" in schema, path


def test_every_schema_has_a_form_that_client_generators_understand() -> None:
    """Unions, tuples and null as JSON Schema has them make generators refuse the document or write wrong code."""
    known = {"allOf", "additionalProperties", "description", "enum", "example", "format", "items"}
    known |= {"maximum", "minimum", "maxItems", "minItems", "maxLength", "minLength", "maxProperties", "nullable"}
    known |= {"pattern", "properties", "required", "type", "x-event", "x-tuple"}
    for path, schema in schemas():
        if "$ref" in schema:
            assert set(schema) == {"$ref"}, path
            continue
        assert set(schema) <= known, path
        assert isinstance(schema.get("type", ""), str), path
        assert schema.get("type") != "null", path
        assert None not in schema.get("enum", ()), path
        assert len(schema.get("allOf", [{}])) == 1, path
        assert isinstance(schema.get("items", {}), dict), path
        assert "type" in schema or "allOf" in schema or path.rpartition("/")[2] in ANY_JSON, path


# Members and items that may be any JSON.
ANY_JSON = ("backtrace", "input", "items", "message", "output", "result", "3")


def test_every_operation_has_an_id_a_tag_a_summary_and_examples() -> None:
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    assert {tag for operation in operations() for tag in operation["tags"]} == tags
    ids = [operation["operationId"] for operation in operations()]
    assert len(ids) == len(set(ids))
    for operation in operations():
        name = operation["operationId"]
        assert re.fullmatch("[a-z]+([A-Z][a-z]+)*", name), name
        assert len(operation["tags"]) == 1
        assert re.fullmatch("[A-Z].*[^.:]", operation["summary"]), name
        if "requestBody" in operation:
            (content,) = operation["requestBody"]["content"].values()
            schema = content["schema"]
            name_of_schema = schema["$ref"].rpartition("/")[2] if "$ref" in schema else None
            target = DOCUMENT["components"]["schemas"][name_of_schema] if name_of_schema else schema
            fits(target["example"], schema, name)
        for status, response in operation["responses"].items():
            for content in answer_of(response)["content"].values():
                fits(content["example"], content["schema"], f"{name} {status}")


def fits(example: Any, schema: dict[str, Any], what: str) -> None:
    error = next(iter(of_json_schema(schema).iter_errors(example)), None)
    assert error is None, f"{what}: {error}"


@pytest.mark.parametrize(
    ("name", "values"),
    [("TaskState", TaskState), ("StepState", StepState), ("EventKind", STREAM_KINDS), ("ReasonCode", REASONS)],
)
def test_an_enumeration_of_the_core_is_complete_in_the_document(name: str, values: Iterable[str]) -> None:
    assert DOCUMENT["components"]["schemas"][name] == {"type": "string", "enum": [str(value) for value in values]}
    uses = [path for path, node in nodes(DOCUMENT) if node.get("$ref") == f"#/components/schemas/{name}"]
    assert len(uses) > 1 or name == "EventKind"


def test_a_resolution_has_the_outcomes_of_the_command() -> None:
    assert DOCUMENT["components"]["schemas"]["ResolveBody"]["properties"]["outcome"]["enum"] == [
        "completed",
        "failed",
        "retry",
    ]


def test_every_parameter_in_a_path_is_described() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for said in operations.values():
            in_path = [each["name"] for each in said.get("parameters", ()) if each["in"] == "path"]
            assert all(f"{{{name}}}" in path for name in in_path)
            assert path.count("{") == len(in_path)


# -- the fuzz ---------------------------------------------------------------------------------------------------------


def answer_of(response: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    return response


def of_json_schema(schema: dict[str, Any]) -> Draft202012Validator:
    return Draft202012Validator({**as_json_schema(schema), "components": SCHEMAS})


@functools.cache
def validator(method: str, path: str, status: int, content_type: str) -> Draft202012Validator:
    """The validator of this answer. Fails if the document does not declare it."""
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    assert str(status) in responses, f"{method} {path} promises no {status}"
    content = answer_of(responses[str(status)])["content"]
    assert content_type in content, f"{method} {path} promises no {status} of {content_type}"
    return of_json_schema(content[content_type]["schema"])


def check(method: str, path: str, status: int, content_type: str | None, body: bytes) -> None:
    assert status != 500, body
    kind = (content_type or "").partition(";")[0]
    found = validator(method, path, status, kind)
    if kind.endswith("json"):
        error = next(iter(found.iter_errors(json.loads(body))), None)
        assert error is None, f"{method} {path} {status}: {error}\n{body[:2000]!r}"


NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["order", "reserve", "charge", "shop.reserve", "1", "default", "nothing", "é☃"])


STEPS = st.sampled_from(["reserve", "charge"])
# What the schema does not say: names of what there is, and JSON that must be an object.
KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "workflow": st.just("order"),
    "namespace": st.just("default"),
    "version": st.just("1"),
    "from_step": STEPS,
    "context": st.dictionaries(NAMES, NONSENSE, max_size=3),
    "labels": st.dictionaries(NAMES, NAMES, max_size=2),
    "idempotency_key": st.from_regex(r"[\x21-\x7e]{1,9}", fullmatch=True),
    "label": st.just("region=eu"),
    "activate": st.sampled_from(["true", "false"]),
    "since": st.just("2026-11-18T10:00:00Z"),
    "kind": st.sampled_from(["ended", "held,completed"]),
    "after": st.just("0"),
}
WORKFLOWS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["drawn", "other"]),
        "version": st.text("0123456789.", min_size=1, max_size=4),
        "steps": st.just([{"name": "a", "handler_class": "h"}]),
    }
)


def of_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema."""
    match schema:
        case {"$ref": reference}:
            return of_schema(DOCUMENT["components"]["schemas"][reference.rpartition("/")[2]])
        case {"nullable": True, **rest}:
            return st.none() | of_schema(rest)
        case {"allOf": [inner]}:
            return of_schema(inner)
        case {"enum": values}:
            return st.sampled_from(values)
        case {"type": "object", "properties": properties}:
            members = {name: of_member(name, of) for name, of in properties.items()}
            required = {name: members.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=members)
        case {"type": "array", "x-tuple": items}:
            return st.tuples(*map(of_schema, items)).map(list)
        case {"type": "array", "items": items}:
            return st.lists(of_schema(items), min_size=schema.get("minItems", 0), max_size=3)
        case {"type": "integer"}:
            return st.integers(schema.get("minimum", -5), schema.get("maximum", 5))
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "string", "pattern": pattern}:
            return st.from_regex(pattern, fullmatch=True)
        case {"type": "string"}:
            return NAMES | st.text(max_size=12)
        case {"type": "null"}:
            return st.none()
        case {"type": "object"}:
            return st.dictionaries(NAMES, NONSENSE, max_size=3)
        case _:
            return st.dictionaries(st.text(max_size=5), NONSENSE, max_size=2) | NONSENSE


def of_member(name: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    return sometimes_nonsense(known(name, schema), of_schema(schema) | NONSENSE)


def known(name: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    found = KNOWN.get(name)
    return of_schema(schema) if found is None else found


def sometimes_nonsense(good: st.SearchStrategy[Any], nonsense: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda dice: nonsense if dice == 0 else good)


@st.composite
def requests_of(
    draw: st.DrawFn, method: str, path: str, task_ids: list[int]
) -> tuple[str, bytes | None, dict[str, str]]:
    """A request of this operation: its target, body and headers."""
    said = DOCUMENT["paths"][path][method.lower()]
    ids = st.sampled_from([task_id + 2 * path.startswith("/v1/steps") for task_id in task_ids])
    names = STEPS
    for room, known_name in (("/v1/workflows", "order"), ("/v1/executors", "bus")):
        if path.startswith(room):
            names = st.just(known_name)
    target, query, headers = path, {}, {}
    for parameter in said.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] == "path":
            value = draw(
                sometimes_nonsense(
                    ids if name.endswith("_id") else names, ids.map(lambda n: n + 1) | st.text(min_size=1, max_size=20)
                )
            )
            target = target.replace(f"{{{name}}}", quote(str(value), safe=""))
        elif parameter["required"] or draw(st.booleans()):
            good = st.integers(0, 3) if name == "wait_ms" else known(name, parameter["schema"])
            if name.startswith("task"):
                good = ids
            if parameter["in"] == "header":
                text = draw(sometimes_nonsense(good, st.text("\x21\x7e é,=", max_size=9)))
                headers[name] = text.encode("latin-1", "replace").decode("latin-1")
            else:
                query[name] = draw(sometimes_nonsense(good, st.text(max_size=20)))
    if query:
        target += "?" + urlencode(query)
    body = None
    if "requestBody" in said and (said["requestBody"]["required"] or draw(st.booleans())):
        good = of_schema(said["requestBody"]["content"]["application/json"]["schema"])
        if path == "/v1/workflows":
            good = WORKFLOWS
        value = draw(sometimes_nonsense(good, NONSENSE))
        body = draw(sometimes_nonsense(st.just(json.dumps(value).encode()), st.binary(max_size=30)))
    return target, body, headers


@pytest.fixture(scope="module")
def task_ids(served: Api) -> list[int]:
    """A few tasks in different states."""
    found = []
    for context in ({}, {"network": "down"}):
        task_id = served.call("POST", "/v1/tasks", {"workflow": "order", "context": context}).json["task_id"]
        served.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000")
        found.append(task_id)
    return found


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_answer_is_one_that_the_document_declares(
    served: Api, task_ids: list[int], method: str, path: str
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    seen: set[int] = set()
    example = requests_of(method, path, task_ids)

    @settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(example)
    def ask(request: tuple[str, bytes | None, dict[str, str]]) -> None:
        target, body, headers = request
        said = {"Authorization": f"Bearer {served.token}", **headers}
        if body is not None:
            said["Content-Type"] = "application/json"
        connection.request(method, target, body, said)
        answer = connection.getresponse()
        seen.add(answer.status)
        if path in STREAMS and answer.status == 200:
            validator(method, path, 200, str(answer.getheader("Content-Type")))
            connection.close()
            return
        check(method, path, answer.status, answer.getheader("Content-Type"), answer.read())

    try:
        ask()
    finally:
        connection.close()
    assert path in SELDOM_TAKEN or any(status < 300 for status in seen), f"nothing but refusals: {seen}"


@pytest.mark.parametrize("code", ["overloaded", "disk_full", "refused_by_database", "key_conflict"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/tasks", {"workflow": "order"}),
        ("POST", "/v1/tasks/batch", {"tasks": [{"workflow": "order"}]}),
        ("POST", "/v1/tasks/{task_id}/retry", None),
        ("POST", "/v1/steps/{step_id}/resolve", {"outcome": "retry", "reason": "r"}),
        ("POST", "/v1/workflows", {"name": "w", "steps": [{"name": "a", "handler_class": "h"}]}),
    ],
)
def test_refusals_of_the_core_are_declared_too(api: Api, method: str, path: str, body: Any, code: Any) -> None:
    api.broker.next_answer = CommandRefused(code, "said the core")
    answer = api.call(method, path.replace("{task_id}", "1").replace("{step_id}", "1"), body)
    check(method, path, answer.status, answer.headers["content-type"], answer.body)
