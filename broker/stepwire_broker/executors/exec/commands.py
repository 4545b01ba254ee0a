"""The program of each handler_class, read from the settings and checked before any program runs."""

import os
import re
import shutil
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from stepwire_protocol import patterns

from stepwire_broker.core.definitions.settings import CommandSettings, ExecSettings, ProgramLimits
from stepwire_broker.errors import BrokerError

from .program import SHELL
from .starting import narrowed

INHERITED: Final = ("PATH", "HOME", "LANG", "TZ")  # from the broker's environment; programs inherit no other variable
_HANDLERS: Final = re.compile(r"[A-Za-z0-9_.:*-]{1,128}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BadCommand(BrokerError, ValueError):
    """A command that cannot be run. The message names the wrong key and a correct form."""


class ProgramCommand(Struct, frozen=True):
    """A program with its arguments, as it is started."""

    handlers: str  # a handler_class, or a pattern of them
    argv: tuple[str, ...]
    cwd: str | None
    environ: dict[str, str]
    shadow_safe: bool
    limits: ProgramLimits


class Commands:
    """The commands of the settings. Raises BadCommand."""

    def __init__(self, settings: ExecSettings, environ: Mapping[str, str]) -> None:
        inherited = {name: environ[name] for name in INHERITED if name in environ}
        inherited.setdefault("PATH", os.defpath)
        self._all = tuple(
            _command(key, command, inherited, settings.limits) for key, command in settings.commands.items()
        )
        if self._all and not os.access(SHELL, os.X_OK):
            raise BadCommand(f"executors.exec starts programs with {SHELL}, which does not exist here")
        self._exact = {command.handlers: command for command in self._all if not patterns.is_pattern(command.handlers)}
        self._patterns = [command for command in self._all if patterns.is_pattern(command.handlers)]

    @property
    def handlers(self) -> tuple[str, ...]:
        return tuple(command.handlers for command in self._all)

    @property
    def shadow_safe(self) -> tuple[str, ...]:
        return tuple(command.handlers for command in self._all if command.shadow_safe)

    def find(self, handler_class: str) -> ProgramCommand | None:
        """The command with this exact name, or else the command of the first pattern that matches."""
        exact = self._exact.get(handler_class)
        if exact is not None:
            return exact
        return next((c for c in self._patterns if patterns.matches(c.handlers, handler_class)), None)


def _command(
    key: str, written: CommandSettings | tuple[str, ...], inherited: dict[str, str], limits: ProgramLimits
) -> ProgramCommand:
    where = f"executors.exec.commands.{key}"
    if not _HANDLERS.fullmatch(key) or any(not segment for segment in key.split(patterns.SEPARATOR)):
        raise BadCommand(
            f"{where}: the key must be a handler_class (letters, digits, _, ., : and -, at most 128) or a pattern of "
            "them, as in shop::* or shop::**"
        )
    settings = CommandSettings(argv=written) if isinstance(written, tuple) else written
    if not settings.argv or not settings.argv[0]:
        raise BadCommand(f"{where}: no program is named; write it like [/usr/bin/convert, -strip]")
    if any("\0" in word for word in (*settings.argv, *settings.env.values(), settings.cwd or "")):
        raise BadCommand(f"{where}: a NUL character cannot be passed to a program; remove it")
    for name in settings.env:
        if not _NAME.fullmatch(name):
            raise BadCommand(f"{where}: env.{name} is not a variable name; use letters, digits and _")
    if settings.cwd is not None and not os.path.isdir(settings.cwd):
        raise BadCommand(f"{where}: cwd {settings.cwd} is not a directory")
    environ = {**inherited, **settings.env}
    _check_program(where, settings.argv[0], settings.cwd, environ["PATH"])
    return ProgramCommand(
        key, settings.argv, settings.cwd, environ, settings.shadow_safe, narrowed(limits, settings.limits)
    )


def _check_program(where: str, program: str, cwd: str | None, path: str) -> None:
    """Find the program as its start will: a name with a slash from `cwd`, any other name in the PATH."""
    if "/" not in program:
        if shutil.which(program, path=path) is None:
            raise BadCommand(f"{where}: there is no program {program} in its PATH ({path})")
        return
    file = os.path.normpath(os.path.join(cwd or os.getcwd(), program))
    if not os.path.exists(file):
        raise BadCommand(f"{where}: there is no program {file}")
    if not os.path.isfile(file) or not os.access(file, os.X_OK):
        raise BadCommand(f"{where}: {file} is not an executable file; chmod +x it, or name what runs it first")
