"""Reads the exception classes of a package from its source, so that the reference can draw their tree."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple


class ErrorClass(NamedTuple):
    name: str
    module: str
    bases: tuple[str, ...]
    meaning: str  # the first sentence of its docstring
    is_public: bool  # exported by the package


def error_classes(*packages: ModuleType) -> dict[str, ErrorClass]:
    """The exception classes that the packages define, by name. Class names are unique in the product."""
    classes = {one.name: one for package in packages for one in _classes(package)}
    return {name: one for name, one in classes.items() if _is_error(one, classes) and not name.startswith("_")}


def tree(root: str, classes: dict[str, ErrorClass], depth: int = 0) -> Iterator[str]:
    """The lines of a nested list: the class, then the classes that derive from it."""
    one = classes[root]
    name = f"**`{one.name}`**" if one.is_public else f"`{one.name}`"
    yield f"{'  ' * depth}- {name} (`{one.module}`): {one.meaning}"
    for child in sorted(classes.values()):
        if root in child.bases:
            yield from tree(child.name, classes, depth + 1)


def _classes(package: ModuleType) -> Iterator[ErrorClass]:
    assert package.__file__ is not None
    exported = getattr(package, "__all__", ())
    directory = Path(package.__file__).parent
    for path in sorted(directory.rglob("*.py")):
        module = ".".join((package.__name__, *path.relative_to(directory).with_suffix("").parts))
        module = module.removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                meaning = _first_sentence(ast.get_docstring(node) or "")
                yield ErrorClass(node.name, module, bases, meaning, node.name in exported)


def _is_error(one: ErrorClass, classes: dict[str, ErrorClass]) -> bool:
    return any(
        base in ("Exception", "ClickException", "ValueError", "OSError")
        or (base in classes and _is_error(classes[base], classes))
        for base in one.bases
    )


def _first_sentence(docstring: str) -> str:
    sentence, stop, _ = " ".join(docstring.split()).partition(". ")
    return f"{sentence}." if stop else sentence
