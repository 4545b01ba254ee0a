"""`python -m conformance [COMMAND] -- DRIVER …`: test the session of an SDK through its driver.

Without a command the dialogues are played. README.md describes each command.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Final

from . import dialogues_command
from .hostile import command as hostile_command


def _lockstep(arguments: Sequence[str]) -> int:
    from .lockstep import command  # needs the Python SDK, which the other commands do not

    return command.main(arguments)


COMMANDS: Final[dict[str, Callable[[Sequence[str]], int]]] = {"lockstep": _lockstep, "hostile": hostile_command.main}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. 0: nothing failed. 1: something failed. 2: nothing was tested."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in COMMANDS:
        return COMMANDS[given[0]](given[1:])
    return dialogues_command.main(given)


if __name__ == "__main__":
    sys.exit(main())
