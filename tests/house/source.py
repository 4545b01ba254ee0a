"""The source files of the product and of its tests, parsed once."""

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PRODUCT = (
    "broker/stepwire_broker",
    "protocol/stepwire_protocol",
    "protocol/stepwire_conform",
    "handlers_sdk/python/stepwire",
)
PROSE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "broker",
    "docs",
    "examples",
    "handlers_sdk",
    "protocol",
    "tests",
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


class Source(NamedTuple):
    path: Path  # from the top of the repository
    text: str
    tree: ast.Module


def python_files() -> list[Path]:
    """The modules of the product."""
    return [path for room in PRODUCT for path in sorted((ROOT / room).rglob("*.py"))]


@cache
def product() -> list[Source]:
    return _parsed(python_files())


@cache
def tests() -> list[Source]:
    return _parsed(sorted((ROOT / "tests").rglob("*.py")))


@cache
def pages() -> list[tuple[Path, str]]:
    """Markdown pages, without the code in them."""
    files: list[Path] = []
    for name in PROSE:
        place = ROOT / name
        files += [place] if place.is_file() else sorted(place.rglob("*.md")) if place.is_dir() else []
    own = (path for path in files if not {".venv", "node_modules"} & {*path.parts})
    return [(path.relative_to(ROOT), _prose(path.read_text())) for path in own]


def definitions(source: Source) -> Iterator[tuple[str, Definition]]:
    """Every function, class and module with its dotted name."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, Definition]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield f"{prefix}{child.name}", child
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # expressions define nothing
                yield from walk(child, prefix)

    yield "(module)", source.tree
    yield from walk(source.tree, "")


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _parsed(paths: list[Path]) -> list[Source]:
    """Parse the files. The trees stay, and the cyclic collector would need three times as long as the parser."""
    gc.disable()
    sources = [Source(path.relative_to(ROOT), text := path.read_text(), ast.parse(text)) for path in paths]
    gc.freeze()
    gc.enable()
    return sources


def _prose(text: str) -> str:
    """The page with its fenced code and its comments blanked, so that line numbers stay."""
    lines: list[str] = []
    fenced = commented = False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            lines.append("")
        elif fenced or commented or line.lstrip().startswith("<!--"):
            commented = ("<!--" in line and "-->" not in line) or (commented and "-->" not in line)
            lines.append("")
        else:
            lines.append(line)
    return "\n".join(lines)
