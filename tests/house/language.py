"""The language of the product's texts, checked: `python -m tests.house.language [PATH …]` prints every finding.

The rules are those of docs/contributing/style.md. A finding names the place, the rule and the text.
"""

import ast
import re
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from .source import Definition, Source, definitions, pages, product, tests

# A text names its subject: it does not begin with a word that stands for one.
OPENINGS: Final = re.compile(r"(It|They|This|That|These|Those|What|Who|Whoever|Whatever|Whose|Of|So)\b")
TEST_OPENINGS: Final = re.compile(r"test_(it|they|this|that|what|who|whoever|whatever|whose|of|so|those)_")

PHRASES: Final[dict[str, re.Pattern[str]]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "an actor without a name": r"\b(nobody|somebody|anybody|whoever)\b",
        "an old adverb": r"\b(anew|any more|no more(?! than))\b",
        "a number without a figure": r"\bso (many|much|long)\b(?! (as|that)\b)",
        "a verb of speech for a message": r"\b(sa(id|y) again|says nothing|(is|are|was|were) (told|heard)|hears of)\b",
        "a position for a fact": r"\bstands?\b(?!-?alone| for\b| in for\b)",
        "a vague preposition": r"\bbeside\b",
        "a grammar mistake": r"\bmay (everything|what)\b|\bbelongs? into\b",
    }.items()
}
TESTS_PHRASES: Final = re.compile(
    r"_(nobody|somebody|anybody|whoever|anew|so_many|so_much|said_again|is_told|are_told|any_more)(_|$)"
)

# Texts that a user reads: the arguments of these calls, by the last part of the callable's name.
SPOKEN: Final = re.compile(
    r"(Error|Refused|Problem|Failure|Refusal|CannotStart|BrokerStopped|Wrong\w*|Hint|echo|note|secho|Permanent)$"
)

# Sentences that need one of these words, by the text itself.
ALLOWED: Final[frozenset[str]] = frozenset()


class Finding(NamedTuple):
    place: str  # path:line
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {self.text}"


def of_product() -> Iterator[Finding]:
    for source in product():
        yield from _docstrings(source)
        yield from _comments(source)
        yield from _strings(source)


def of_tests() -> Iterator[Finding]:
    for source in tests():
        yield from _docstrings(source)
        for name, node in definitions(source):
            last = name.rsplit(".", 1)[-1]
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and last.startswith("test_"):
                place = f"{source.path}:{node.lineno}"
                if TEST_OPENINGS.match(last):
                    yield Finding(place, "the test's name does not name its subject", last)
                if found := TESTS_PHRASES.search(last):
                    yield Finding(place, f"{found[1]!r}", last)


def of_pages() -> Iterator[Finding]:
    for path, text in pages():
        if path.name == "CHANGELOG.md" or "reference" in path.parts:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            yield from _phrases(f"{path}:{number}", line)


def _docstrings(source: Source) -> Iterator[Finding]:
    for name, node in definitions(source):
        text = ast.get_docstring(node)
        if text is not None:
            place = f"{source.path}:{_line_of(node)}"
            if OPENINGS.match(text):
                yield Finding(place, f"the docstring of {name} does not name its subject", text.split("\n")[0])
            yield from _phrases(place, text)


def _comments(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.split("\n"), 1):
        _, mark, comment = line.partition("# ")
        if mark and '"' not in line.partition("#")[0].replace('"""', ""):
            yield from _phrases(f"{source.path}:{number}", comment)


def _strings(source: Source) -> Iterator[Finding]:
    """Texts for users: of errors, hints, help and log events."""
    documented = {id(node.body[0].value) for _, node in definitions(source) if _is_documented(node)}  # type: ignore[attr-defined]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield from _phrases(f"{source.path}:{node.lineno}", node.value)
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            texts = list(node.args) if SPOKEN.search(called) else []
            texts += [word.value for word in node.keywords if word.arg in ("help", "short_help", "hint", "summary")]
            for text in texts:
                if (opening := _opening(text)) and OPENINGS.match(opening[:1].upper() + opening[1:]):
                    place = f"{source.path}:{text.lineno}"
                    yield Finding(place, "the text does not name its subject", opening)


def _opening(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value else ""


def _phrases(place: str, text: str) -> Iterator[Finding]:
    folded = " ".join(text.split())
    for rule, pattern in PHRASES.items():
        for found in pattern.finditer(folded):
            around = folded[max(0, found.start() - 40) : found.end() + 40]
            if not any(allowed in folded for allowed in ALLOWED):
                yield Finding(place, f"{rule} ({found[0]!r})", f"… {around} …")


def _is_documented(node: Definition) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def _line_of(node: Definition) -> int:
    return 1 if isinstance(node, ast.Module) else node.lineno


def main(paths: list[str]) -> None:
    findings = [*of_product(), *of_tests(), *of_pages()]
    shown = [finding for finding in findings if not paths or any(path in finding.place for path in paths)]
    for finding in shown:
        print(finding)
    print(f"{len(shown)} findings")


if __name__ == "__main__":
    main(sys.argv[1:])
