"""Hints: codes in the core, worded by the API with its routes and by the CLI with its commands."""

import ast
import re
from pathlib import Path

import pytest
import stepwire_broker.core
from stepwire_broker.api import hints as api_hints
from stepwire_broker.api.operations import OPERATIONS
from stepwire_broker.cli import hints as cli_hints
from stepwire_broker.core.answers.hints import TEXTS, Hint, HintCode, hint_text

CORE = Path(stepwire_broker.core.__file__).parent
COMMAND = re.compile(r"\bstepwire [a-z]+|--[a-z]+")
ROUTE = re.compile(r"\b(GET|POST|PUT|DELETE) /|/v1/")
ONLY_NAMES_THE_TOOL = {"routing/router.py", "definitions/workflow_schema.py"}  # documentation, not hints


def hint(code: HintCode) -> Hint:
    return Hint(code, 1, 2, "exec", "shop.charge", "shop::order::charge", ("reserve", "charge"), "shop")


@pytest.mark.parametrize("code", list(HintCode))
def test_the_api_and_the_cli_word_every_hint(code: HintCode) -> None:
    by_api, by_cli = api_hints.worded(hint(code)), cli_hints.worded(hint(code))
    assert by_api
    assert by_cli
    assert not COMMAND.search(by_api)
    assert not ROUTE.search(by_cli)
    assert "None" not in by_api + by_cli


@pytest.mark.parametrize("code", list(HintCode))
def test_the_core_words_every_hint_without_a_command_or_a_route(code: HintCode) -> None:
    text = hint_text(hint(code))
    assert text == TEXTS[code].format(
        task_id=1,
        step_id=2,
        executor="exec",
        handler_class="shop.charge",
        path="shop::order::charge",
        names="reserve, charge",
        namespace="shop",
    )
    assert not COMMAND.search(text)
    assert not ROUTE.search(text)


def test_every_route_that_a_hint_names_exists() -> None:
    templates = {re.sub(r"{\w+}", "*", path) for _, path in OPERATIONS}
    for text in api_hints.TEXTS.values():
        for path in re.findall(r"/v1/[\w/{}]*", text):
            assert re.sub(r"{+\w+}+", "*", path) in templates, text


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_no_text_of_the_core_names_a_command(path: Path) -> None:
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    named = [text for text in texts if re.search(r"\bstepwire [a-z]+", text)]
    assert str(path.relative_to(CORE)) in ONLY_NAMES_THE_TOOL or named == []


def test_the_cli_words_a_next_member_and_keeps_the_text_of_a_code_that_it_does_not_know() -> None:
    assert cli_hints.next_text({"code": "show_task", "task_id": 7}, "x") == "see: stepwire task show 7"
    assert cli_hints.next_text({"code": "fly_to_the_moon"}, "the broker's text") == "the broker's text"
    assert cli_hints.next_text(None, "the broker's text") == "the broker's text"
