"""The OpenAPI document describes the API: it has every route, and every answer to a request is one that it declares.

The requests are generated from the document, with a share of nonsense.
"""

import functools
import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from stepwire_broker.api import openapi
from stepwire_broker.api.app import Application
from stepwire_broker.api.operations import OPERATIONS
from stepwire_broker.core.answers.answers import CommandRefused

from .running_api import Api

DOCUMENT = openapi.document()
STREAMS = ("/v1/tap", "/v1/events")
# The worker is needed, and the handlers; and what may be retried or resolved stands just so for one order only.
SELDOM_TAKEN = (
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
    assert answer.json["openapi"] == "3.1.0"


def test_every_schema_is_valid_and_every_reference_has_a_target() -> None:
    def look(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(reference := value.get("$ref"), str):
                assert reference.rpartition("/")[2] in DOCUMENT["components"]["schemas"]
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)

    look(DOCUMENT)
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    names = [said["operationId"] for path in DOCUMENT["paths"].values() for said in path.values()]
    assert len(names) == len(set(names))


def test_every_parameter_in_a_path_is_described() -> None:
    for path, operations in DOCUMENT["paths"].items():
        for said in operations.values():
            in_path = [each["name"] for each in said.get("parameters", ()) if each["in"] == "path"]
            assert all(f"{{{name}}}" in path for name in in_path)
            assert path.count("{") == len(in_path)


# -- the fuzz ---------------------------------------------------------------------------------------------------------


@functools.cache
def validator(method: str, path: str, status: int, content_type: str) -> Draft202012Validator:
    """The validator of this answer. Fails if the document does not declare it."""
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    assert str(status) in responses, f"{method} {path} promises no {status}"
    content = responses[str(status)]["content"]
    assert content_type in content, f"{method} {path} promises no {status} of {content_type}"
    return Draft202012Validator({**content[content_type]["schema"], "components": DOCUMENT["components"]})


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
        case {"anyOf": kinds}:
            return st.one_of([of_schema(kind) for kind in kinds])
        case {"enum": values}:
            return st.sampled_from(values)
        case {"type": "object", "properties": properties}:
            members = {name: of_member(name, of) for name, of in properties.items()}
            required = {name: members.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(required, optional=members)
        case {"type": "array", "prefixItems": items}:
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
