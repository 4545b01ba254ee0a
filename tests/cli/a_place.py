"""A directory to run commands in, with a broker in a separate process, started as users start it.

    STEPWIRE_TEST_OWNER=b2 pytest tests/cli

Then a shop has two brokers on PostgreSQL. Its tasks are submitted to the second one, which owns their lane, and all
other commands go to the first one, which owns none of the tasks.
"""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.postgres.databases import OWNER, database_in
from tests.system.harness import eventually

from . import forked

STEPWIRE = [sys.executable, "-m", "stepwire"]
LANES: Final = 2  # of a shop with two brokers: one each
NO_CHANGES: Final[Mapping[str, str]] = {}

# The tests of what is each broker's own by design. With two brokers, they ask the one that owns the tasks.
OWN: Final = {
    "test_a_drained_worker_finishes_its_steps_and_gets_no_new_ones": (
        "`worker list` counts the steps that the worker has of the broker that answers"
    ),
}


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Serving(NamedTuple):
    """A broker in a separate process, and the line that it printed when it was ready."""

    process: "subprocess.Popen[str]"
    ready: str

    def end(self, number: int | None = None) -> Ended:
        """Send the signal, if any, and wait for the broker to end."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=40)
        return Ended(self.process.returncode, out, err)


class Place(NamedTuple):
    """A directory for a broker's state, and the environment of the commands that run there. `of_owner`: the changes of
    the environment for commands to the broker that owns the tasks, if that is another one."""

    directory: Path
    environ: dict[str, str]
    of_owner: Mapping[str, str] = NO_CHANGES

    def stepwire(self, *words: str, stdin: str = "", **environ: str) -> Ended:
        """Run one command to its end."""
        if words[:2] == ("task", "submit") or _running_test() in OWN:
            environ = {**self.of_owner, **environ}
        return Ended(*forked.run(words, self.directory, {**self.environ, **environ}, stdin))

    def on_terminal(self, *words: str, types: str = "", columns: int = 120, **environ: str) -> Ended:
        """Run one command to its end on a terminal where a person types `types`. All output is in `out`."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        try:
            process = subprocess.Popen(
                [*STEPWIRE, *words],
                cwd=self.directory,
                env={**self.environ, "TERM": "xterm-256color", **environ},
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
            )
            os.close(slave)
            os.write(master, types.encode())
            seen = b""
            try:
                while chunk := os.read(master, 65536):
                    seen += chunk
            except OSError:  # the last process that had it open has closed it
                pass
            return Ended(process.wait(timeout=60), seen.decode(errors="replace").replace("\r\n", "\n"), "")
        finally:
            os.close(master)

    def work(self, file: str = "worker.py", **environ: str) -> "subprocess.Popen[str]":
        """Start a worker and wait until this place's broker lists it."""
        endpoints = {
            "STEPWIRE_STEPS": "ipc://.stepwire/steps.sock",
            "STEPWIRE_RESULTS": "ipc://.stepwire/results.sock",
        }
        process = forked.start(
            [sys.executable, file],
            self.directory,
            {**self.environ, **endpoints, **environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

        def is_listed() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"the worker did not start:\n{process.communicate(timeout=20)[1]}")
            return process.pid in [one["pid"] for one in self.stepwire("worker", "list", "--json").json]

        try:
            eventually(is_listed, "the worker to be listed", 60)
        except BaseException:
            stop(process)
            raise
        return process

    def serve(self, *words: str) -> "Serving":
        """Start a broker and wait until it is ready."""
        process = forked.start(
            [*STEPWIRE, "serve", *words], self.directory, self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, err = process.communicate(timeout=20)
            raise AssertionError(f"the broker did not start:\n{err}")
        return Serving(process, line)


def _running_test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].partition(" ")[0].partition("[")[0]


def place(directory: Path, port: int = 0) -> Place:
    """A place without the settings of the user who runs the tests. No broker listens on port 0."""
    environ = {
        name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "VIRTUAL_ENV", "PYTHONPATH")
    }
    return Place(directory, {**environ, "HOME": str(directory), "STEPWIRE_HTTP__LISTEN": f"127.0.0.1:{port}"})


@contextmanager
def a_shop(directory: Path, port: int) -> Iterator[Place]:
    """A place with a broker, two workflows and a worker."""
    here = place(directory, port)
    for name, text in zip(("order.yaml", "slow.yaml"), WORKFLOWS, strict=True):
        (here.directory / name).write_text(text)
    (here.directory / "worker.py").write_text(WORKER)
    (here.directory / "worker.py").chmod(0o644)
    with ExitStack() as stack:
        if OWNER is None:
            stack.callback(stop, here.serve().process)
        else:
            here = stack.enter_context(_with_owner(here, OWNER))
        applied = here.stepwire("workflow", "apply", "order.yaml", "slow.yaml")
        assert applied.code == 0, applied
        stack.callback(stop, here.work())
        yield here


@contextmanager
def _with_owner(here: Place, owner_id: str) -> Iterator[Place]:
    """Run the place's broker next to another one, which was there first and owns the lanes but one."""
    database = database_in(here.directory, LANES)
    shared = {
        "DATABASE_URL": database.url,
        "STEPWIRE_DATABASE__SCHEMA": database.schema,
        "STEPWIRE_DATABASE__LANES": str(LANES),
        "STEPWIRE_BROKER__LEASE_MS": "2000",
    }
    directory = here.directory / "owner"
    directory.mkdir(mode=0o700)
    there = Place(directory, place(directory).environ | shared | {"STEPWIRE_BROKER__ID": owner_id})
    here.environ.update(shared)
    with ExitStack() as stack:
        of_owner = there.serve("-o", "json")
        stack.callback(stop, of_owner.process)
        stack.callback(stop, here.serve().process)

        def is_shared() -> bool:
            lanes = here.stepwire("lane", "list", "--json").json
            return len({lane["broker"] for lane in lanes}) == LANES

        eventually(is_shared, "each broker to own a lane", 60)
        token_file = str(directory / ".stepwire" / "token")
        yield here._replace(
            of_owner={"STEPWIRE_URL": json.loads(of_owner.ready)["http"], "STEPWIRE_TOKEN_FILE": token_file}
        )


WORKER = """
from stepwire import Context, OutcomeUnknown, Permanent, Worker

worker = Worker.from_env()

@worker.handler("shop.charge")
def charge(context: Context, order: dict) -> dict:
    match order.get("card"):
        case "broken":
            raise Permanent("the card is broken")
        case "unknown":
            raise OutcomeUnknown("the bank did not answer")
    return {"total": 1.5}

worker.run()
"""

WORKFLOWS = (
    """
name: order
namespace: shop
version: "1"
steps:
  - {name: charge, handler_class: shop.charge, delivery_mode: at_most_once}
""",
    """
name: slow
namespace: shop
version: "1"
steps:
  - {name: dream, handler_class: nobody.offers}
""",
)


def stop(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate(timeout=20)
