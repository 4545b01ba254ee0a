"""The JSON Schema for editors accepts what the validator accepts, and refuses what a schema can check."""

from typing import Any

import jsonschema
import pytest
from stepwire_broker.core.definitions import step_reader, workflow, workflow_schema
from stepwire_broker.definition_files import read_document

from .test_workflow import ORDER, step
from .test_workflow import test_a_member_is_read_as as right_members
from .test_workflow import test_a_member_that_is_probably_a_mistake_gives_a_warning as strange
from .test_workflow import test_a_steps_selector_replaces_its_workflows as right_selectors
from .test_workflow import test_a_wrong_member_is_named_with_its_remedy as wrong_members
from .test_workflow import test_a_wrong_workflow_is_named_with_its_remedy as wrong_workflows
from .test_workflow import workflow as written

SCHEMA = workflow_schema.workflow_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# What only whoever looks at several members, or at names, or at JSON's own rules can know.
BEYOND_A_SCHEMA = (
    "is not a step of this workflow",
    "is not in this step's depends_on",
    "cannot depend on itself",
    "is the name of steps[0] already",
    "wait for each other",
    "is not retried",
    "less than base_ms",
    "where no worker has labels",
    "a label's key is a string of 1 to 256 characters",
    "±(2^53 - 1)",
    "U+0000",
    "'a\\n'",  # in Python's own dialect `$` lets a line end through
    "timeout: '0.5ms'",
    "timeout: 0 is",
)


def table_of(test: Any) -> list[Any]:
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    return list(mark.args[1])


def of_member(members: dict[str, Any]) -> dict[str, Any]:
    return written(step("before"), step("a", "before") | members)


RIGHT = [
    read_document(ORDER).value,
    *(of_member(members) for members, _, _ in table_of(right_members)),
    *(
        written(step(worker_selector=own), worker_selector=of_workflow)
        for of_workflow, own, _ in table_of(right_selectors)
    ),
    *(document for document, _ in table_of(strange)),
]
WRONG = [
    *((of_member(members), [problem]) for members, problem in table_of(wrong_members)),
    *table_of(wrong_workflows),
]


def test_the_workflow_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_every_member_is_described() -> None:
    assert workflow_schema.OF_WORKFLOW.keys() == workflow.WORKFLOW_READERS.keys()
    assert workflow_schema.OF_STEP.keys() == step_reader.STEP_READERS.keys()
    assert workflow_schema.OF_BACKOFF.keys() == step_reader.BACKOFF_READERS.keys()


@pytest.mark.parametrize("document", RIGHT, ids=repr)
def test_the_schema_accepts_every_document_that_the_validator_accepts(document: Any) -> None:
    workflow.read_workflow(document)
    VALIDATOR.validate(document)


@pytest.mark.parametrize(("document", "problems"), WRONG, ids=lambda value: repr(value)[:80])
def test_the_schema_refuses_documents_of_the_wrong_form(document: Any, problems: list[str]) -> None:
    if VALIDATOR.is_valid(document):
        assert all(any(words in problem for words in BEYOND_A_SCHEMA) for problem in problems)
