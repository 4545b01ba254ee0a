"""Copies the repository's pages for the generator, in the same folders, so that their links keep their form.

A page may link what is not a page: a program, a configuration, a folder. Each of these becomes a page that shows it.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOMS: Final = ("broker", "docs", "examples", "handlers_sdk", "protocol", "tests")
SHOWN_BYTES_MAX: Final = 200_000
RAW: Final = (".json",)  # for programs: linked as files

_FENCE: Final = re.compile(r"^ *(```+|~~~+)")
_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)(?P<path>[^)#\s]+)(?P<place>#[^)\s]+)?(?=\))")
_ARROW: Final = re.compile(r"^\s*(?P<source>\S+) --> (?P<target>[^:\s]+)(?:: (?P<label>.+))?$")
_LANGUAGES: Final = {
    ".py": "python",
    ".rb": "ruby",
    ".mjs": "js",
    ".c": "c",
    ".go": "go",
    ".sh": "sh",
    ".pl": "perl",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".sql": "sql",
    ".service": "ini",
    "Containerfile": "dockerfile",
}


def pages(repository: Path) -> list[Path]:
    """All pages, relative to the repository."""
    found = [path for pattern in ("*.md", *(f"{room}/**/*.md" for room in ROOMS)) for path in repository.glob(pattern)]
    return sorted(path.relative_to(repository) for path in found if "node_modules" not in path.parts)


def copy_pages(repository: Path, to: Path) -> None:
    linked: set[Path] = set()
    for page in pages(repository):
        text = (repository / page).read_text()
        _write(to / page, "".join(_transformed(text, page, repository, linked)))
    for path in sorted(linked):
        if path.suffix in RAW:
            (to / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / path, to / path)
        elif (repository / path).is_dir():
            _write(to / path / "README.md", _folder(repository, path))
        else:
            _write(to / f"{path}.md", _file(repository / path, path))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _transformed(text: str, page: Path, repository: Path, linked: set[Path]) -> Iterator[str]:
    """The page with links to pages only, and with drawings as tables: those need a program from another host."""

    def link(match: re.Match[str]) -> str:
        return _target(match["path"], page, repository, linked) + (match["place"] or "")

    lines = iter(text.splitlines(keepends=True))
    for line in lines:
        if fence := _FENCE.match(line):
            block = [line, *_until(lines, fence[1])]
            yield from _as_table(block) if "mermaid" in line else block
        else:
            yield _LINK.sub(link, line)


def _until(lines: Iterator[str], fence: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line.strip() == fence:
            return


def _target(target: str, page: Path, repository: Path, linked: set[Path]) -> str:
    path = Path(os.path.normpath(page.parent / target))
    source = repository / path
    if source.is_dir():
        if not (source / "README.md").exists():
            linked.add(path)
        return f"{target.rstrip('/')}/README.md"
    if not source.is_file():
        raise FileNotFoundError(f"{page} links {target}, which does not exist")
    if path.suffix == ".md":
        return target
    linked.add(path)
    return target if path.suffix in RAW else f"{target}.md"


def _as_table(block: list[str]) -> Iterator[str]:
    arrows = [match for line in block if (match := _ARROW.match(line))]
    if any(arrow["label"] for arrow in arrows):
        yield "| from | to | by |\n|---|---|---|\n"
        for arrow in arrows:
            yield f"| {_name(arrow['source'], 'begin')} | {_name(arrow['target'], 'end')} | {arrow['label'] or ''} |\n"
        return
    yield "| imports | imported |\n|---|---|\n"
    for source in sorted({arrow["source"] for arrow in arrows}):
        targets = ", ".join(f"`{arrow['target']}`" for arrow in arrows if arrow["source"] == source)
        yield f"| `{source}` | {targets} |\n"


def _name(state: str, edge: str) -> str:
    return f"({edge})" if state == "[*]" else f"`{state}`"


_HIDDEN: Final[str] = "---\nsearch:\n  exclude: true\n---\n\n"


def _file(source: Path, path: Path) -> str:
    language = _LANGUAGES.get(path.suffix) or _LANGUAGES.get(path.name, "text")
    text = source.read_bytes()[:SHOWN_BYTES_MAX].decode()
    return f"{_HIDDEN}# {path.name}\n\n`{path}`\n\n~~~~~~{language}\n{text.rstrip()}\n~~~~~~\n"


def _folder(repository: Path, path: Path) -> str:
    is_shown: Callable[[Path], bool] = lambda entry: entry.is_dir() and (entry / "README.md").exists()  # noqa: E731
    folders = sorted(entry.name for entry in (repository / path).iterdir() if is_shown(entry))
    items = "".join(f"- [{name}]({name}/README.md)\n" for name in folders)
    return f"{_HIDDEN}# {path}\n\n{items}"
