"""Orders and their answers as JSON: `[kind, members]`, where the kind is the name of the command or the answer.

A command is stored whole, with the principal that sent it and how that principal was identified, because the broker
where it came in has authorised it. Its request number belongs to that broker, and the owner replaces it.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw

from stepwire_broker.core.answers.answers import Answer, CommandRefused, Done, ResultTaken
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, ResumeTask, RetryTask
from stepwire_broker.core.intake.erasure import ErasedTask, EraseTask
from stepwire_broker.core.model.events import Command, Explain, ExplainSteps, ReportResult

from .moving import LaneMoves, MoveLane

_COMMANDS: Final = (
    CancelTask,
    PauseTask,
    ResumeTask,
    RetryTask,
    EraseTask,
    ResolveStep,
    Explain,
    ExplainSteps,
    MoveLane,
    ReportResult,
)
_ANSWERS: Final = (CommandRefused, Done, ErasedTask, LaneMoves, ResultTaken)
COMMANDS: Final[dict[str, type[Command]]] = {kind.__name__: kind for kind in _COMMANDS}
ANSWERS: Final[dict[str, type[Answer]]] = {kind.__name__: kind for kind in _ANSWERS}

_pair: Final = msgspec.json.Decoder(tuple[str, Raw]).decode


def command_text(command: Command) -> str:
    kind = type(command).__name__
    assert COMMANDS[kind] is type(command)
    return msgspec.json.encode([kind, command]).decode()


def read_command(text: str) -> Command | None:
    """Return the command; None if this version of the program does not know it."""
    command: Command | None = _read(text, COMMANDS)
    return command


def read_answer(text: str, more: dict[str, type[Answer]]) -> Answer | None:
    """Return the answer; None if this version of the program does not know it. `more`: answers of other modules."""
    answer: Answer | None = _read(text, ANSWERS | more)
    return answer


def _read(text: str, kinds: Any) -> Any:
    try:
        kind, members = _pair(text)
        return msgspec.json.decode(members, type=kinds[kind])
    except (KeyError, msgspec.DecodeError):
        return None
