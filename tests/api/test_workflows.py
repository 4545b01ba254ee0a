"""Workflows come as JSON or YAML, never change, and are refused with the place of every fault."""

import asyncio
import json

import pytest
from stepwire_broker.api.workflows import read
from stepwire_broker.core.definitions.settings import LimitSettings

from .running_api import WORKFLOW, Api

YAML = b"""
name: invoice
namespace: billing
version: "7"
steps:
  - {name: draw, handler_class: billing.draw}
"""


@pytest.mark.parametrize("kind", ["application/yaml", "application/x-yaml", "text/yaml; charset=utf-8"])
def test_yaml_is_accepted_by_its_content_type(api: Api, kind: str) -> None:
    answer = api.call("POST", "/v1/workflows", YAML, {"Content-Type": kind})
    assert answer.status in (200, 201)
    assert (answer.json["namespace"], answer.json["name"], answer.json["version"]) == ("billing", "invoice", "7")
    (warning,) = answer.json["warnings"]
    assert (warning["code"], warning["handlers"]) == ("not_offered", ["billing.draw"])


def test_applying_the_same_content_again_succeeds_and_other_content_is_a_conflict(api: Api) -> None:
    body = {"name": "fixed", "version": "1", "steps": [{"name": "a", "handler_class": "h"}]}
    assert (api.call("POST", "/v1/workflows", body).status, api.call("POST", "/v1/workflows", body).status) == (
        201,
        200,
    )
    other = {**body, "steps": [{"name": "b", "handler_class": "h"}]}
    answer = api.call("POST", "/v1/workflows", other)
    assert (answer.status, answer.code) == (409, "version_conflict")
    assert api.call("GET", "/v1/workflows/fixed").json["document"]["steps"][0]["name"] == "a"


def test_a_version_may_be_stored_without_becoming_the_active_one(api: Api) -> None:
    def body(version: str) -> dict[str, object]:
        return {"name": "moving", "version": version, "steps": [{"name": "a", "handler_class": "h"}]}

    api.call("POST", "/v1/workflows", body("1"))
    api.call("POST", "/v1/workflows", body("2"))
    api.call("POST", "/v1/workflows?activate=false", body("3"))
    assert api.call("GET", "/v1/workflows/moving").json["version"] == "2"
    assert api.call("GET", "/v1/workflows/moving?version=3").json["active"] is False
    listed = api.call("GET", "/v1/workflows?namespace=default").json["workflows"]
    assert [(one["version"], one["active"]) for one in listed if one["name"] == "moving"] == [
        ("1", False),
        ("2", True),
        ("3", False),
    ]
    assert api.call("POST", "/v1/workflows?activate=perhaps", body("4")).code == "bad_query"


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("application/yaml", b"name: x\nsteps:\n  - {name: a, handler_clas: h}\n", "3"),
        ("application/yaml", b"a: &x 1\nb: *x\n", "anchors"),
        ("application/yaml", b"name: x\nname: y\n", "twice"),
        ("application/yaml", b"\xff", "UTF-8"),
        ("application/json", b"{", ""),
        ("application/json", b"[]", ""),
        ("application/json", json.dumps({**WORKFLOW, "steps": []}).encode(), "steps"),
        (
            "application/json",
            b'{"name":"x","steps":[{"name":"a","handler_class":"h","depends_on":["b"]},'
            b'{"name":"b","handler_class":"h","depends_on":["a"]}]}',
            "a",
        ),
    ],
)
def test_an_invalid_workflow_is_refused_with_the_place_of_its_fault(
    api: Api, kind: str, text: bytes, says: str
) -> None:
    answer = api.call("POST", "/v1/workflows", text, {"Content-Type": kind})
    assert (answer.status, answer.code) == (400, "invalid_workflow")
    assert says in answer.json["detail"]


def test_an_unknown_workflow_is_404(api: Api) -> None:
    for path in ("/v1/workflows/nothing", "/v1/workflows/order?namespace=elsewhere", "/v1/workflows/order?version=99"):
        assert api.call("GET", path).code == "not_found"


def test_another_version_can_be_activated(api: Api) -> None:
    for version in ("7", "8"):
        assert api.call("POST", "/v1/workflows", {**WORKFLOW, "name": "chosen", "version": version}).status == 201
    assert api.call("GET", "/v1/workflows/chosen").json["version"] == "8"
    answer = api.call("POST", "/v1/workflows/chosen/activate?version=7", {})
    assert (answer.status, answer.json["version"]) == (200, "7")
    assert api.call("GET", "/v1/workflows/chosen").json["version"] == "7"
    for path, code in (("?version=9", "not_found"), ("", "bad_query"), ("?namespace=x&version=7", "not_found")):
        assert api.call("POST", f"/v1/workflows/chosen/activate{path}", {}).code == code


def test_an_unknown_worker_cannot_be_drained(api: Api) -> None:
    assert api.call("POST", "/v1/workers/w:0000000000000000/drain", {}).code == "not_found"
    assert api.call("POST", "/v1/workers/w:0/drain", {"quitt": True}).code == "bad_field"


def test_a_workflow_lists_the_handlers_that_no_worker_offers_when_it_is_applied_and_when_it_is_shown(api: Api) -> None:
    body = {
        "name": "typo",
        "steps": [{"name": "a", "handler_class": "nothing.offers.this", "on_unknown": "fail"}],
    }
    applied = api.call("POST", "/v1/workflows", body).json["warnings"]
    assert [(each["code"], each["path"]) for each in applied] == [
        ("no_effect", "steps[0].on_unknown"),
        ("not_offered", None),
    ]
    assert applied[1]["handlers"] == ["nothing.offers.this"]
    assert applied[1]["message"].startswith("`nothing.offers.this` is offered by no connected worker")
    assert api.call("GET", "/v1/workflows/typo").json["warnings"] == applied[1:]


def test_a_large_document_is_read_beside_the_loop() -> None:
    steps = ",".join(f'{{"name":"s{i}","handler_class":"h"}}' for i in range(3_000))

    async def scenario() -> None:
        reading = asyncio.ensure_future(read(f'{{"name":"w","steps":[{steps}]}}'.encode(), LimitSettings()))
        await asyncio.sleep(0)  # the reading begins
        assert not reading.done()
        assert len((await reading).steps) == 3_000

    asyncio.run(scenario())
