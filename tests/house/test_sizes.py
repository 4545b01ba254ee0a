"""The product's code stays readable in pieces: limits on functions, classes, modules and rooms."""

import ast
from collections import Counter
from pathlib import Path

from .source import definitions, lines_of, product

FUNCTION_LINES_MAX = 60
FUNCTION_LINES_P99_MAX = 40
CLASS_LINES_MAX = 450
CLASS_METHODS_MAX = 30
MODULE_LINES_MAX = 600
CORE_ROOM_MODULES_MAX = 12
MIGRATIONS = "migrations/versions"  # a migration is read once, from top to bottom


def functions() -> list[tuple[int, str]]:
    return [
        (lines_of(node), f"{source.path}: {name}")
        for source in product()
        if MIGRATIONS not in str(source.path)
        for name, node in definitions(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_a_function_has_at_most_60_lines() -> None:
    assert [one for one in functions() if one[0] > FUNCTION_LINES_MAX] == []


def test_ninety_nine_of_a_hundred_functions_have_at_most_40_lines() -> None:
    lengths = sorted(length for length, _ in functions())
    assert lengths[len(lengths) * 99 // 100] <= FUNCTION_LINES_P99_MAX


def test_a_module_has_at_most_600_lines() -> None:
    assert [s.path for s in product() if s.text.count("\n") > MODULE_LINES_MAX] == []


def test_a_class_has_at_most_30_methods_and_450_lines() -> None:
    large = []
    for source in product():
        for name, node in definitions(source):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
                if methods > CLASS_METHODS_MAX or lines_of(node) > CLASS_LINES_MAX:
                    large.append((f"{source.path}: {name}", methods, lines_of(node)))
    assert large == []


def test_a_room_of_the_core_has_at_most_12_modules() -> None:
    rooms: Counter[Path] = Counter(
        source.path.parent for source in product() if "core" in source.path.parts and source.path.name != "__init__.py"
    )
    assert [room for room, modules in rooms.items() if modules > CORE_ROOM_MODULES_MAX] == []


def test_the_core_imports_nothing_for_type_checkers_alone() -> None:
    assert [s.path for s in product() if "core" in s.path.parts and "TYPE_CHECKING" in s.text] == []
