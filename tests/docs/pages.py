"""Reads a page of documentation as blocks to run, in their order."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).parents[2]
PATTERNS: Final = ("README.md", "docs/**/*.md", "examples/**/README.md", "protocol/SDK_GUIDE.md")
ROOMS: Final = ("broker", "docs", "examples", "handlers_sdk", "protocol", "tests")

RUN: Final = ("sh", "console", "python", "yaml")
NOT_COMMANDS: Final = (
    "",
    "text",
    "json",
    "ini",
    "dockerfile",
    "mermaid",
    "wire",
    "procfile",
    *("ruby", "js", "go", "c"),
)

_FENCE: Final = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<language>[\w-]*).*$")
_COMMENT: Final = re.compile(r"^ *<!-- *(?P<word>file|terminal|seen in|not run): *(?P<rest>.+?) *-->$")
_SETUP: Final = re.compile(r"^<!-- *setup(?: +(?P<word>file|terminal): *(?P<rest>\S+))?$")


class Block(NamedTuple):
    """A block of a page. `word` and `rest` come from the comment above it; without one, the language decides."""

    line: int
    language: str
    text: str
    word: str = ""
    rest: str = ""


class Malformed(Exception):
    """The page holds a block that is neither run nor marked."""


def pages() -> list[Path]:
    """The pages whose blocks are run."""
    return _matching(PATTERNS)


def documents() -> list[Path]:
    """All pages whose links are checked."""
    return _matching((*PATTERNS, *(f"{room}/**/*.md" for room in ROOMS)))


def _matching(patterns: Iterable[str]) -> list[Path]:
    paths = {path for pattern in patterns for path in REPOSITORY.glob(pattern)}
    return sorted(path for path in paths if "node_modules" not in path.parts)


def blocks(text: str) -> list[Block]:
    return list(_blocks(text.splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    word, rest = "", ""
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if setup := _SETUP.match(line):
            language = "console" if setup["word"] == "terminal" else "sh"
            yield Block(number, language, _until(numbered, "-->", number), setup["word"] or "", setup["rest"] or "")
        elif line.startswith("<!-- setup"):
            raise Malformed(f"line {number}: {line!r} is not a valid setup")
        elif comment := _COMMENT.match(line):
            word, rest = comment["word"], comment["rest"]
        elif fence := _FENCE.match(line):
            language, indent = fence["language"].lower(), len(fence["indent"])
            text = _until(numbered, fence["fence"], number, indent)
            if language not in (*RUN, *NOT_COMMANDS):
                raise Malformed(f"line {number}: {language!r} is none of {', '.join((*RUN, *NOT_COMMANDS))}")
            yield Block(number, language, text, word, rest)
            word, rest = "", ""
        elif line.strip() and word:
            raise Malformed(f"line {number}: the comment `{word}: {rest}` is above no block")


def _until(numbered: "Iterator[tuple[int, str]]", end: str, begun: int, indent: int = 0) -> str:
    text = []
    for _, line in numbered:
        if line.strip() == end:
            return "\n".join(text) + "\n"
        text.append(line[indent:] if not line[:indent].strip() else line)
    raise Malformed(f"line {begun}: the block that begins here does not end")
