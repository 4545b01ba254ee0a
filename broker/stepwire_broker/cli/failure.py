"""The end of a failed command: one sentence, the next action, and an exit code for scripts."""

import enum
import sys
from typing import IO, Any, Final, NoReturn

import click

from stepwire_broker.errors import BrokerError

from .options import Options


class Exit(enum.IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2  # the command line, the configuration, or a document is wrong
    NOT_FOUND = 3
    WRONG_STATE = 4
    UNREACHABLE = 5
    DENIED = 6
    TASK_FAILED = 10
    TASK_CANCELLED = 11
    TASK_RUNS = 12  # the wait timed out
    TASK_HELD = 13
    INTERRUPTED = 130


MEANING: Final[dict[Exit, str]] = {
    Exit.OK: "The command succeeded.",
    Exit.FAILURE: "The command failed for a reason that no other code covers.",
    Exit.USAGE: "The command line, the configuration or a document is wrong.",
    Exit.NOT_FOUND: "The task, step, workflow or worker does not exist.",
    Exit.WRONG_STATE: "The task, step, worker or file exists, but its current state does not allow this command.",
    Exit.UNREACHABLE: "No broker answered.",
    Exit.DENIED: "The broker does not accept the token.",
    Exit.TASK_FAILED: "The awaited task failed.",
    Exit.TASK_CANCELLED: "The awaited task was cancelled.",
    Exit.TASK_RUNS: "The wait timed out; the awaited task or worker is still running.",
    Exit.TASK_HELD: "The awaited task waits on a held step.",
    Exit.INTERRUPTED: "Ctrl-C ended the wait; the awaited task continues.",
}
assert MEANING.keys() == set(Exit)

OF_STATUS: Final[dict[int, Exit]] = {
    400: Exit.USAGE,
    401: Exit.DENIED,
    403: Exit.DENIED,
    404: Exit.NOT_FOUND,
    409: Exit.WRONG_STATE,
    413: Exit.USAGE,
    415: Exit.USAGE,
    422: Exit.USAGE,
}


class Failure(BrokerError, click.ClickException):
    """A command failed. `hint` is the next action, preferably a command."""

    def __init__(self, code: Exit, message: str, hint: str = "", problem: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # click declares it on the class, and reads it from the instance
        self.hint = hint
        context = click.get_current_context(silent=True)  # no longer set when click calls `show`
        options = context.find_object(Options) if context else None
        self._is_json = options is not None and options.output != "text"
        self.problem = problem or {"code": code.name.lower(), "detail": message, "hint": hint}

    def about(self, subject: str) -> "Failure":
        """The same failure, naming which of several files or items it concerns."""
        return Failure(Exit(self.exit_code), f"{subject}: {self.message}", self.hint, self.problem)

    def show(self, file: IO[Any] | None = None) -> None:
        if self._is_json:
            import msgspec

            click.echo(msgspec.json.encode({"error": self.problem}), err=True)
            return
        from . import output

        output.echo(f"stepwire: {self.message}", err=True)
        if self.hint:
            output.echo(f"  {self.hint}", err=True)


def usage(message: str, hint: str = "") -> NoReturn:
    raise Failure(Exit.USAGE, message, hint)


def leave(code: Exit) -> NoReturn:
    sys.exit(int(code))
