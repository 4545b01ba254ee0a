"""The drivers of the SDKs, and their processes: one for each simulated worker.

A process is used again by the restarts of its worker, and by the next seeds.
"""

from typing import Any, Final, NamedTuple, Protocol

from conformance.driver_process import DriverProcess, Failed

from tests.languages.sdks import SDKS

# A reply takes microseconds, but the first one waits for the start of a virtual machine on a busy computer.
REPLY_TIMEOUT_S: Final = 60.0
IN_PROCESS: Final = "python"


class CannotPlay(Exception):
    """The driver does not start, or does not know the first op."""


class DriverCommand(NamedTuple):
    """The command of a driver, and the name of its session in reports."""

    name: str
    words: tuple[str, ...]


class Driver(Protocol):
    """Answers ops. Raises Failed if a reply is missing or reports an error."""

    def exchange(self, op: dict[str, Any]) -> dict[str, Any]: ...


class Drivers:
    """The processes of one driver. A process plays the lives of one worker, one after the other."""

    def __init__(self, command: DriverCommand) -> None:
        self.name = command.name
        self._words = command.words
        self._processes: dict[int, DriverProcess] = {}

    def of_worker(self, number: int) -> Driver:
        """The process of this worker, started if there is none. Raises Failed if it cannot be started."""
        process = self._processes.get(number)
        if process is None:
            try:
                process = self._processes[number] = DriverProcess(self._words, REPLY_TIMEOUT_S)
            except OSError as error:
                raise Failed(f"the driver cannot be started: {error}") from None
        return process

    def discard(self, number: int) -> None:
        """End the process of this worker, because it failed. The next life gets another one."""
        process = self._processes.pop(number, None)
        if process is not None:
            process.close()

    def close(self) -> None:
        for number in list(self._processes):
            self.discard(number)

    def try_out(self) -> None:
        """Play the first op, so that a driver that is not built ends the command with a sentence. Raises CannotPlay."""
        op = {"op": "start", "now_ms": 0, "worker": "w0:0123456789abcdef", "offers": [{"pattern": "h0"}], "slots": 1}
        try:
            self.of_worker(0).exchange(op)
        except Failed as failed:
            self.discard(0)
            name = self.name.removesuffix("-driver")
            how = f"; build it: sh handlers_sdk/{name}/check.sh build" if name in SDKS and name != IN_PROCESS else ""
            raise CannotPlay(f"the driver of {self.name} cannot play: {failed}{how}") from None


def known_sessions() -> list[str]:
    return [IN_PROCESS, f"{IN_PROCESS}-driver", *(name for name in SDKS if name != IN_PROCESS)]


def driver_of(session: str) -> DriverCommand | None:
    """The driver of this session. None: Python's session, in this process."""
    if session == IN_PROCESS:
        return None
    return DriverCommand(session, SDKS[session.removesuffix("-driver")].driver)


def command_of(words: list[str]) -> DriverCommand:
    """A driver that is named by its command, for example of an SDK in development."""
    return DriverCommand(" ".join(words), tuple(words))
