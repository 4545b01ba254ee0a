"""The table of files in docs/contributing/glossary.md: `python -m tests.house.files` makes it from docstrings."""

import ast
import re
from pathlib import Path

from .source import PRODUCT, ROOT, Source, product

PAGE = ROOT / "docs/contributing/glossary.md"
BEGIN, END = "<!-- files -->", "<!-- end of the files -->"
LEFT_OUT = ("migrations",)  # migrations are numbered, not named


def table() -> str:
    """Every module of the product by its room, with the first sentence of its docstring."""
    rooms: dict[str, list[str]] = {}
    for source in product():
        if source.path.name in ("__init__.py", "__main__.py") or any(part in LEFT_OUT for part in source.path.parts):
            continue
        room = _room(source.path)
        rooms.setdefault(room, []).append(f"| `{source.path.stem}` | {_first_sentence(source)} |")
    lines = ["## Files", ""]
    for room, rows in rooms.items():
        lines += [f"### {room}", "", "| file | holds |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def page() -> str:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def _room(path: Path) -> str:
    for root in PRODUCT:
        if path.is_relative_to(root):
            inside = path.relative_to(root).parent
            package = Path(root).name
            return package if inside == Path() else f"{package}/{inside}"
    raise ValueError(path)


def _first_sentence(source: Source) -> str:
    text = ast.get_docstring(source.tree)
    assert text, f"{source.path} has no docstring"
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(text.split("\n\n")[0].split()))[0]
    return sentence.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
