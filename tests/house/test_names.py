"""One name, one thing: classes, files and public names."""

import ast
import importlib
import inspect
from collections import defaultdict

import pytest
import stepwire_broker

from . import drawing, files
from .source import PRODUCT, ROOT, product

# What users write in Python has the same word as what the broker makes of it: both are that thing.
# A token and a connection of the bus both have a grant.
SHARED_CLASS_NAMES = frozenset({"Step", "Task", "Workflow", "Submitted", "Grant"})


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(set)
    for source in product():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].add(str(source.path))
    doubled = {name: sorted(where) for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in doubled.items() if name not in SHARED_CLASS_NAMES} == {}


def test_the_glossary_lists_every_file() -> None:
    assert files.PAGE.read_text() == files.page(), "run: python -m tests.house.files"


def test_the_drawings_of_the_architecture_are_fresh() -> None:
    assert drawing.PAGE.read_text() == drawing.page(), "run: python -m tests.house.drawing"


def packages_with_public_names() -> list[str]:
    """Read, and not parsed: each test process collects this table."""
    return [
        ".".join(path.parent.relative_to((ROOT / room).parent).parts)
        for room in PRODUCT
        for path in sorted((ROOT / room).rglob("__init__.py"))
        if "__all__" in path.read_text()
    ]


def test_the_broker_exports_what_an_application_needs_to_embed_it_and_nothing_else() -> None:
    assert stepwire_broker.__all__ == [
        "Broker",
        "BrokerError",
        "CommandError",
        "InUse",
        "Task",
        "TaskCancelled",
        "TaskFailed",
        "TaskHeld",
        "TaskNotCompleted",
        "TaskView",
    ]


@pytest.mark.parametrize("package", packages_with_public_names())
def test_every_public_name_can_be_imported_and_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        value = getattr(module, name)
        assert not inspect.isclass(value) or inspect.getdoc(value), f"{package}.{name} has no docstring"


def test_the_index_lists_every_decision_with_its_title_status_and_date() -> None:
    folder = ROOT / "docs/decisions"
    index = (folder / "README.md").read_text()
    for record in sorted(folder.glob("0*.md")):
        title, _, status, date, *_ = record.read_text().split("\n")
        number, status, date = record.name[:4], status.removeprefix("Status: "), date.removeprefix("Date: ")
        assert f"| {number} | [{title.removeprefix('# ')}]({record.name}) | {status} | {date} |" in index
