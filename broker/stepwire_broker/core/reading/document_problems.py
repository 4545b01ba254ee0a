"""The problems of a document: all of them at once, each with its path and a suggestion."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from stepwire_broker.core.reading.nearest import did_you_mean, echoed
from stepwire_broker.errors import BrokerError

PROBLEMS_MAX: Final = 100  # listed at most; further problems are counted
GUESSES_MAX: Final = 8  # comparing names is slow
GUESSED_NAMES_MAX: Final = 2_000
_SHOWN_CHARACTERS: Final = 60

Path: TypeAlias = tuple[str | int, ...]
Where: TypeAlias = Callable[[Path], str]  # a path's file and line, or ""


class DocumentProblem(NamedTuple):
    path: str  # steps[2].retry_limit
    message: str
    where: str = ""  # order.yaml:14
    code: str = "invalid"  # of a warning: what kind of mistake it probably is

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.path, self.message) if part)


class InvalidWorkflow(BrokerError):
    """The definition cannot be run. `problems` lists all problems, in the order of the document where possible."""

    def __init__(self, problems: Iterable[DocumentProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class ProblemCollector:
    """Collects the problems of one document, and the warnings about probable mistakes that are allowed."""

    def __init__(self, where: Where | None) -> None:
        self.problems: list[DocumentProblem] = []
        self.warnings: list[DocumentProblem] = []
        self._where = where or (lambda _: "")
        self._omitted = 0
        self._guesses = 0

    def add(self, path: Path, message: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(self._problem(path, message))
        else:
            self._omitted += 1

    def warn(self, path: Path, message: str, code: str = "no_effect") -> None:
        if len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(self._problem(path, message)._replace(code=code))

    def refusal(self) -> InvalidWorkflow:
        more = [DocumentProblem("", f"and {self._omitted} more problems")] if self._omitted else []
        return InvalidWorkflow(self.problems + more)

    def suggestion(self, written: str, names: Collection[str]) -> str:
        """Return `; did you mean x?`, or nothing."""
        self._guesses += 1
        if self._guesses > GUESSES_MAX or len(names) > GUESSED_NAMES_MAX:
            return ""
        meant = did_you_mean(written, names)
        return f"; {meant}" if meant else ""

    def _problem(self, path: Path, message: str) -> DocumentProblem:
        return DocumentProblem(path_text(path), message, self._where(path))


def path_text(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{shown_key(part)}" if text else shown_key(part)
    return text


def shown_key(key: str) -> str:
    return echoed(key) if key.isidentifier() else repr(key[:_SHOWN_CHARACTERS])


def shown(value: Any) -> str:
    """Return a value as a message shows it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…")
        case list() | tuple():
            return "a list"
        case dict():
            return "a map"
        case _:
            return str(value)[:_SHOWN_CHARACTERS]
