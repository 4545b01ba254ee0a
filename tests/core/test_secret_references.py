"""References to secrets in workflows and contexts: their form is checked, and literals in their place are named."""

from typing import Any

import msgspec
import pytest
from stepwire_broker import definition_files
from stepwire_broker.core.definitions.settings import LimitSettings
from stepwire_broker.core.definitions.workflow import InvalidWorkflow, Workflow, read_workflow
from stepwire_broker.core.reading.literal_secrets import literals
from stepwire_broker.stages.requests import read_task, read_tasks
from stepwire_protocol.errors import InvalidMessage

GOOD = ("card", "stripe/live", "a.b-c_d/0", "x" * 200)
BAD = ("", "..", "../x", "/etc/shadow", "a/../b", "a//b", "a/", ".hidden", "a b", "-x", "a/.b", "é", "x" * 201, "a\n")


def with_config(config: Any) -> Workflow:
    text = msgspec.json.encode({"name": "w", "steps": [{"name": "s", "handler_class": "H", "handler_config": config}]})
    document = definition_files.read_document(msgspec.json.format(text, indent=2), "order.json")
    return read_workflow(document.value, document.where)


def submitted(context: Any) -> bytes:
    body = msgspec.json.encode({"workflow": "w", "context": context})
    return bytes(read_task(body, LimitSettings()).context)


@pytest.mark.parametrize("name", GOOD)
def test_a_reference_is_stored_as_it_is(name: str) -> None:
    reference = {"api": [{"$secret": name}]}
    assert msgspec.json.decode(with_config(reference).steps[0].handler_config) == reference
    assert msgspec.json.decode(submitted(reference)) == reference


@pytest.mark.parametrize("name", [*BAD, 7, None, ["x"]])
def test_a_name_that_is_no_relative_file_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidWorkflow) as refused:
        with_config({"api": [{"$secret": name}]})
    (problem,) = refused.value.problems
    assert problem.path == "steps[0].handler_config.api[0].'$secret'"
    assert problem.where == "order.json:10"
    with pytest.raises(InvalidMessage, match=r"`context\.api\[0\]\.'\$secret'`: .* is not the name of a secret"):
        submitted({"api": [{"$secret": name}]})


def test_a_reference_has_no_other_member() -> None:
    with pytest.raises(InvalidWorkflow, match=r"handler_config\.api: a reference to a secret has the one member"):
        with_config({"api": {"$secret": "a", "default": "b"}})
    with pytest.raises(InvalidMessage, match=r"`context\.api`: a reference to a secret has the one member"):
        submitted({"api": {"$secret": "a", "default": "b"}})


def test_a_reference_with_an_escaped_key_is_checked_as_well() -> None:
    with pytest.raises(InvalidMessage, match="is not the name of a secret"):
        read_task(b'{"workflow":"w","context":{"a":{"\\u0024secret":"../x"}}}', LimitSettings())


def test_the_problem_names_the_task_of_a_batch() -> None:
    tasks = [{"workflow": "w"}, {"workflow": "w", "context": {"a": {"$secret": ".."}}}]
    with pytest.raises(InvalidMessage, match=r"`tasks\[1\]\.context\.a\.'\$secret'`"):
        read_tasks(msgspec.json.encode({"tasks": tasks}), LimitSettings())


@pytest.mark.parametrize(
    "name", ["password", "db_password", "apiKey", "API_KEY", "stripe-secret-key", "token", "accessToken", "credentials"]
)
def test_a_literal_named_like_a_secret_is_a_warning_with_its_place(name: str) -> None:
    (warning,) = with_config({"a": {name: "sk_live_1"}}).warnings
    assert (warning.code, warning.where) == ("literal_secret", "order.json:9")
    assert warning.path.startswith("steps[0].handler_config.a.")
    assert "sk_live_1" not in str(warning)
    assert with_config({"a": {name: {"$secret": "stripe/live"}}}).warnings == ()


@pytest.mark.parametrize(
    "name", ["public_key", "idempotencyKey", "page_token", "monkey", "keyboard", "tokens_max", "k"]
)
def test_other_names_and_other_values_are_no_warning(name: str) -> None:
    assert list(literals({name: "text", "password": 7, "token": "", "key": None, "secret": {"x": "y"}})) == []
