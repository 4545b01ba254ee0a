"""The page `handlers_sdk/mistakes.md`: a table of mistakes and sentences, written and read here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.languages.sdks import FOLDER

from .table import GROUPS, LANGUAGES, MISTAKES

PAGE: Final = FOLDER / "mistakes.md"
ALL: Final = "all"

NAMES: Final = {"python": "Python", "go": "Go", "java": "Java", "node": "Node", "ruby": "Ruby", "rust": "Rust"}
_HEAD: Final = """# Errors that a newcomer makes

Each mistake ends in one sentence: what is wrong, where, and what to do. The sentence is the same in all six SDKs,
unless the language forces a difference. `python -m tests.languages.mistakes` makes every mistake with every SDK and
compares the sentences with this page; `--write` writes the page. Do not edit it by hand.

The sentences were printed in the directory `/srv/shop`. Where a worker cannot start, the sentence is the message of its
`ConfigurationError`: Go and Rust return it, and the other languages raise it. If a program does not catch it, the
language also shows the program's own line. A worker that has started writes the sentence into its log, and goes on.
"""

Sentences = dict[str, dict[str, str]]  # mistake -> language -> sentence


def written(sentences: Sentences) -> str:
    """The page with these sentences, which have to be complete."""
    parts = [_HEAD]
    for group, mistakes in GROUPS.items():
        parts.append(f"## {group}\n\n| mistake | in | sentence |\n|---|---|---|")
        for mistake in mistakes:
            rows = _rows(sentences[mistake.name])
            title = mistake.title
            for languages, text in rows:
                parts[-1] += f"\n| {title} | {languages} | {_cell(text)} |"
                title = ""
            parts[-1] += "".join(
                f"\n| | {', '.join(NAMES[name] for name in names)} | – ({reason}) |"
                for reason, names in _grouped(mistake.absent).items()
                if reason
            )
        notes = [f"- {m.title}: {m.differs}" for m in mistakes if m.differs]
        if notes:
            parts.append("The sentences differ, because:\n\n" + "\n".join(notes))
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def read(path: Path = PAGE) -> Sentences:
    """The sentences of the page."""
    by_title = {mistake.title: mistake.name for mistake in MISTAKES.values()}
    by_word = {word: name for name, word in NAMES.items()}
    sentences: Sentences = {}
    name = ""
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in line.removeprefix("| ").removesuffix(" |").split(" | ")]
        if not line.startswith("| ") or len(cells) != 3 or cells[0] == "mistake":
            continue
        title, languages, text = cells
        name = by_title.get(title.strip("| "), name) if title else name
        if text.startswith("– ("):
            continue
        known = sentences.setdefault(name, {})
        words = list(NAMES.values()) if languages == ALL else languages.split(", ")
        text = _text(text)
        known |= {by_word[word]: text for word in words if by_word[word] not in MISTAKES[name].absent}
    return sentences


def _rows(of_languages: dict[str, str]) -> list[tuple[str, str]]:
    """The sentences with the languages that print them."""
    grouped = _grouped({name: of_languages[name] for name in LANGUAGES if name in of_languages})
    if len(grouped) == 1 and len(of_languages) == len(LANGUAGES):
        return [(ALL, next(iter(grouped)))]
    return [(", ".join(NAMES[name] for name in names), text) for text, names in grouped.items()]


def _grouped(texts: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, text in texts.items():
        grouped.setdefault(text, []).append(name)
    return grouped


def _cell(text: str) -> str:
    """A sentence as a cell of a table: as code, because it contains paths, quotes and asterisks."""
    fence = "``" if "`" in text else "`"
    space = " " if fence == "``" else ""
    return f"{fence}{space}{text.replace('|', chr(92) + '|')}{space}{fence}"


def _text(cell: str) -> str:
    fence = "``" if cell.startswith("``") else "`"
    return cell.removeprefix(fence).removesuffix(fence).strip().replace("\\|", "|")
