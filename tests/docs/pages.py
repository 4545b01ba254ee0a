"""A page of documentation as what is to be done, in its order."""

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
    """`word` and `rest` are what the comment above it says; a block without one is what its language says."""

    line: int
    language: str
    text: str
    word: str = ""
    rest: str = ""


class Malformed(Exception):
    """The page holds something that is neither run nor marked."""


def pages() -> list[Path]:
    """What is done as it is written."""
    return _matching(PATTERNS)


def documents() -> list[Path]:
    """What is read."""
    return _matching((*PATTERNS, *(f"{room}/**/*.md" for room in ROOMS)))


def _matching(patterns: Iterable[str]) -> list[Path]:
    found = {path for pattern in patterns for path in REPOSITORY.glob(pattern)}
    return sorted(path for path in found if "node_modules" not in path.parts)


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
            raise Malformed(f"line {number}: {line!r} is no setup")
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
            raise Malformed(f"line {number}: the comment `{word}: {rest}` stands above no block")


def _until(numbered: "Iterator[tuple[int, str]]", end: str, begun: int, indent: int = 0) -> str:
    text = []
    for _, line in numbered:
        if line.strip() == end:
            return "\n".join(text) + "\n"
        text.append(line[indent:] if not line[:indent].strip() else line)
    raise Malformed(f"line {begun}: what begins here does not end")
