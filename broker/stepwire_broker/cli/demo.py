"""`stepwire demo`: the product in one minute, with real processes, a real kill -9, and a check of the ledgers.

Each printed figure comes from the broker's answers, from the ledgers that the handlers write, or from a clock. Each
printed command makes the same calls as the demo itself.
"""

import importlib
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
import msgspec
from stepwire.client import Client, ClientError

from . import output
from .demo_screen import Screen
from .failure import Exit, Failure, leave
from .options import Options, StepwireCommand

if TYPE_CHECKING:
    from stepwire_broker.demo.books import LedgerRun
    from stepwire_broker.demo.proof import Proof
    from stepwire_broker.demo.shop import Shop

DIRECTORY: Final = Path(".stepwire-demo")
CROWD: Final = 24
DOOMED_RUNS: Final = 5  # runs of the worker at the moment when it is killed
FRESH_NS: Final = 500_000_000  # half the time that packing takes
WAIT_S: Final = 30.0

ITEMS: Final = (
    {"name": "kettle", "cents": 4500, "count": 1},
    {"name": "tea", "cents": 700, "count": 3},
    {"name": "cup", "cents": 950, "count": 2},
)
CUSTOMERS: Final = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Leslie")


@click.command(cls=StepwireCommand)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    show_default=True,
    help="Directory that keeps the state. A second run continues there.",
)
@click.pass_obj
def demo(options: Options, directory: Path) -> None:
    """Show Stepwire at work in under a minute: workers in several languages, a kill -9 and a held payment."""
    from stepwire_broker.demo.shop import DemoFailed, Shop

    _import_all()
    started_s = time.monotonic()
    try:
        with _interruptible(), Shop(directory) as shop:
            story = _Story(options, shop)
            proofs = story.run()
    except KeyboardInterrupt:
        output.note(options, f"\nstopped: every process has ended, and the state is kept in {directory}/")
        leave(Exit.FAILURE)
    except (DemoFailed, ClientError) as error:
        raise Failure(Exit.FAILURE, f"the demo cannot continue: {error}") from None
    except OSError as error:
        raise _unusable(error) from None
    story.end(proofs, time.monotonic() - started_s)
    if not all(proof.holds for proof in proofs):
        raise Failure(Exit.FAILURE, "a promise was broken", f"see the ledgers in {directory}/")


def _unusable(error: OSError) -> Failure:
    """The failure to read or write a file of the demo. Any other OSError is a bug and stays as it is."""
    if error.filename is None:
        raise error
    return Failure(
        Exit.FAILURE,
        f"the demo cannot use {error.filename}: {error.strerror}",
        "choose a directory that you may write to: stepwire demo --directory DIR",
    )


def _import_all() -> None:
    """Import the modules of the demo before it can be interrupted. An interrupt during an import can end Python by the
    signal, even if the command handles the signal."""
    for name in (
        "rich.markup",
        "rich.progress",
        "rich.table",
        "stepwire_broker.demo.proof",
        f"{__package__}.task.watch",
    ):
        importlib.import_module(name)


class _Story:
    """The acts of the demo, in order."""

    def __init__(self, options: Options, shop: "Shop") -> None:
        self._options = options
        self._shop = shop
        self._screen = Screen(options)
        self._task_ids: list[int] = []
        self._killed: set[int] = set()
        self._resolved: set[int] = set()
        self._recovered_s: list[float] = []
        self._run_number = 0
        self._sdks: list[str] = []

    def run(self) -> "list[Proof]":
        client = self._open()
        self._one_order(client)
        self._a_step_in_each_sdk(client)
        self._an_order_that_cannot_be_shipped(client)
        self._a_worker_is_killed(client)
        self._a_payment_is_held(client)
        return self._prove(client)

    # -- the acts -----------------------------------------------------------------------------------------------------

    def _open(self) -> Client:
        from stepwire_broker.demo import sdks
        from stepwire_broker.demo.shop import WORKFLOW

        shop = self._shop
        self._run_number = shop.next_run()
        self._screen.line(f"[bold]Stepwire demo[/], run {self._run_number} in {shop.directory}/")
        client = shop.open()
        installed, missing = shop.languages()
        client.apply_workflow_text(WORKFLOW.read_bytes(), "application/yaml")
        shop.write_playground(installed, _order(1))
        for name, offer in (("shop-1", "shop"), ("shop-2", "shop"), ("payments", "payments")):
            shop.start_worker(name, offer)
        for language in installed:
            shop.start_level0(language)
        shop.try_sdks(sdks.programs())
        shop.until_connected(client, "shop-1", "shop-2", "payments")
        workers = ", ".join(f"{name} ({shop.pid(name)})" for name in ("shop-1", "shop-2", "payments"))
        loops = ", ".join(f"{one.name} ({shop.pid(f'level0-{one.name}')})" for one in installed)
        self._screen.line(f"  broker   ({shop.pid('broker')}) at {shop.url}")
        self._screen.line(f"  workers  {workers}: Python with the SDK")
        self._screen.line(f"  level 0  {loops}: a plain loop each, no SDK")
        self._screen.missing_languages(missing)
        left = len(client.tasks(state="running", limit=500)["tasks"])
        if left:
            self._screen.line(f"  [dim]{left} orders of an earlier run are unfinished: they continue, or are held[/]")
        return client

    def _one_order(self, client: Client) -> None:
        self._screen.title("An order", "price and invoice run without an SDK; stock fails once and is retried")
        document = self._follow(client, self._submit(client, {"warehouse": "busy"}))
        outputs = {step["name"]: step["output"] or {} for step in document["steps"]}
        by = [f"{name} by {outputs[name].get('language')}" for name in ("price", "invoice")]
        self._screen.line(f"Without an SDK: {', '.join(by)}.")
        self._screen.line(f"The result: {output.shortened(document['result'])}")

    def _a_step_in_each_sdk(self, client: Client) -> None:
        """Run a task with one step for each SDK that is built in this clone. Without any, this act is left out."""
        from stepwire_broker.demo import sdks

        self._sdks = languages = self._shop.until_sdks_are_known(client)
        if not languages:
            return
        self._screen.title("The same step in other languages", "a worker of each SDK that is built in this clone")
        for language in languages:
            self._screen.line(f"  {language:<8} ({self._shop.pid(language)})")
        client.apply_workflow(sdks.workflow(languages))
        task = {"workflow": sdks.NAME, "namespace": "demo", "context": {"to": "every language"}}
        document = self._follow(client, client.submit_many([task])[0])
        ran = [f"{step['name']} by {step['worker']}" for step in document["steps"] if step["state"] == "completed"]
        self._screen.line(f"{len(ran)} of {len(languages)} steps are completed: {', '.join(ran)}.")

    def _an_order_that_cannot_be_shipped(self, client: Client) -> None:
        self._screen.title(
            "An order to Atlantis", "the order is paid but cannot be shipped: a trigger rule runs refund"
        )
        task_id = self._submit(client, {"city": "Atlantis"})
        document = self._follow(client, task_id)
        cents = next(step["output"] for step in document["steps"] if step["name"] == "refund")["cents"]
        self._screen.line(f"{document['context']['customer']} got {_euros(cents)} back.")

    def _a_worker_is_killed(self, client: Client) -> None:
        self._screen.title(f"{CROWD} orders, and kill -9", "the steps of the killed worker run again on another worker")
        task_ids = self._submit_many(client, [{} for _ in range(CROWD)])
        with self._screen.progress(len(task_ids), lambda: self._completed(client, task_ids)) as update:
            doomed = self._shop.until(lambda: self._packing_runs("shop-1", update), "shop-1 has enough to do", WAIT_S)
            pid = self._shop.pid("shop-1")
            self._screen.line(f"shop-1 is packing {len(doomed)} orders, among them task {doomed[0].task_id}.")
            killed_ns = self._kill("shop-1")
            lost = self._unfinished(pid)
            reruns = self._shop.until(lambda: self._reruns(lost, pid, update), "the steps of shop-1 run again")
            self._recovered_s = [(run.at_ns - killed_ns) / 1e9 for run in reruns]
            first, last = _duration(min(self._recovered_s)), _duration(max(self._recovered_s))
            self._screen.line(f"shop-1 was running {len(lost)} steps. They run again on shop-2:")
            self._screen.line(f"the first {first} after the kill, the last {last}.")
            self._shop.until(lambda: update() == len(task_ids) or None, "all orders done", WAIT_S)
        self._screen.line(f"{len(task_ids)} of {len(task_ids)} orders are done.")

    def _a_payment_is_held(self, client: Client) -> None:
        from stepwire_broker.demo import books

        self._screen.title("A payment that may have happened", "the broker cannot know, so it holds the step")
        shop = self._shop
        (shop.directory / books.BANK_IS_SLOW).touch()
        task_ids = self._submit_many(client, [{"bank": "answers late"}, {"bank": "books late"}])
        shop.until(lambda: self._both_at_the_bank(task_ids), "both payments at the bank")
        self._screen.line(f"Tasks {task_ids[0]} and {task_ids[1]} are at the bank, which is slow.")
        self._kill("payments")
        shop.until(lambda: _held(client, task_ids), "both payments held")
        (shop.directory / books.BANK_IS_SLOW).unlink()
        shop.start_worker("payments-2", "payments")
        shop.until_connected(client, "payments-2")
        held = shop.until(lambda: _held(client, task_ids), "both payments still held")
        self._screen.command("stepwire step list --state held")
        self._screen.held_steps(held)
        self._screen.line("The new worker, payments-2, gets neither step: a second run could charge a card twice.")
        charges = {one.task_id: one for one in books.read_bank(shop.directory) if one.what == "charge"}
        for step in held:
            self._resolve(client, step, charges.get(step["task_id"]))
        for task_id in task_ids:
            client.wait(task_id, WAIT_S)
        self._screen.line(", ".join(f"task {task_id} is {client.task(task_id)['state']}" for task_id in task_ids))

    def _resolve(self, client: Client, step: dict[str, Any], booking: Any) -> None:
        name = f"{step['task_id']}/{step['name']}"
        self._resolved.add(step["step_id"])
        if booking is None:
            reason = "not in the bank's book"
            self._screen.line(f"The bank's book has no charge for task {step['task_id']}, so the step may run again:")
            self._screen.command(f'stepwire step resolve {name} --retry --reason "{reason}"')
            client.resolve(step["step_id"], "retry", reason=reason)
            return
        reason = "found in the bank's book"
        charge = {"transaction": booking.transaction, "cents": booking.cents}
        amount = _euros(booking.cents)
        self._screen.line(f"The bank's book has a charge of {amount} for task {step['task_id']}, so the step is done:")
        self._screen.command(
            f"stepwire step resolve {name} --completed '{msgspec.json.encode(charge).decode()}' --reason \"{reason}\""
        )
        client.resolve(step["step_id"], "completed", output=charge, reason=reason)

    def _prove(self, client: Client) -> "list[Proof]":
        from stepwire_broker.demo import books, proof

        ours = set(self._task_ids)
        document = client.workflow("order", namespace="demo")["document"]
        return proof.prove(
            proof.Evidence(
                tasks=[client.task(task_id) for task_id in self._task_ids],
                runs=[run for run in books.read_runs(self._shop.directory) if run.task_id in ours],
                bookings=[one for one in books.read_bank(self._shop.directory) if one.task_id in ours],
                needs={step["name"]: step.get("depends_on", []) for step in document["steps"]},
                killed=self._killed,
                resolved=self._resolved,
            )
        )

    def end(self, proofs: "list[Proof]", took_s: float) -> None:
        if self._options.output != "text":
            facts = {
                "run": self._run_number,
                "directory": str(self._shop.directory),
                "tasks": len(self._task_ids),
                "sdks": self._sdks,
                "recovered_s": sorted(self._recovered_s),
                "proofs": [proof._asdict() for proof in proofs],
                "took_s": took_s,
            }
            output.one(self._options, facts, "")
            return
        self._screen.title("Proof", "from the ledgers of the handlers and the bank, not from the broker")
        for proof in proofs:
            self._screen.point("[green]✓[/]" if proof.holds else "[red]✗ false:[/]", proof.sentence)
        self._screen.line(f"\nThat took {took_s:.0f} s; every process has ended, and the state is kept. To continue:")
        stepwire = _stepwire_command()
        self._screen.command(f"cd {self._shop.directory} && {stepwire} dev")
        self._screen.line("and in the same directory, in another terminal:")
        self._screen.command(f"{stepwire} task submit demo::order --context @order.json --follow")
        self._screen.command(f"{stepwire} task events {self._task_ids[-1]}")

    # -- observations -------------------------------------------------------------------------------------------------

    def _completed(self, client: Client, task_ids: list[int]) -> int:
        """The number of these tasks that are completed."""
        page = client.tasks(label=f"run={self._run_number}", state="completed", limit=500)["tasks"]
        return len({task["task_id"] for task in page} & set(task_ids))

    def _packing_runs(self, name: str, update: Callable[[], int]) -> "list[LedgerRun] | None":
        """The worker's recent `pack` runs, if there are enough that will not end before the kill; otherwise None."""
        update()
        since_ns = time.time_ns() - FRESH_NS
        packing = [run for run in self._unfinished(self._shop.pid(name)) if run.step == "pack" and run.at_ns > since_ns]
        return packing if len(packing) >= DOOMED_RUNS else None

    def _unfinished(self, pid: int) -> "list[LedgerRun]":
        """The runs that this process has started and not finished."""
        from stepwire_broker.demo import books

        runs = [run for run in books.read_runs(self._shop.directory) if run.pid == pid]
        ended = {run.step_id for run in runs if run.event != "started"}
        return [run for run in runs if run.step_id not in ended]

    def _reruns(self, lost: "list[LedgerRun]", pid: int, update: Callable[[], int]) -> "list[LedgerRun] | None":
        """The runs of the lost steps on other processes, once every lost step has started again."""
        from stepwire_broker.demo import books

        update()
        step_ids = {run.step_id for run in lost}
        runs = books.read_runs(self._shop.directory)
        reruns = [run for run in runs if run.step_id in step_ids and run.pid != pid and run.event == "started"]
        return reruns if {run.step_id for run in reruns} == step_ids else None

    def _both_at_the_bank(self, task_ids: list[int]) -> bool | None:
        """True after both payments have started, and the bank that answers late has booked the first."""
        from stepwire_broker.demo import books

        started = {run.task_id for run in books.read_runs(self._shop.directory) if run.step == "charge"}
        booked = {one.task_id for one in books.read_bank(self._shop.directory)}
        return (started.issuperset(task_ids) and task_ids[0] in booked) or None

    # -- actions ------------------------------------------------------------------------------------------------------

    def _submit(self, client: Client, changes: dict[str, Any]) -> int:
        return self._submit_many(client, [changes])[0]

    def _submit_many(self, client: Client, orders: list[dict[str, Any]]) -> list[int]:
        """Submit each order with a key, so that a lost answer cannot turn one order into two."""
        tasks: list[dict[str, Any]] = []
        for changes in orders:
            number = len(self._task_ids) + len(tasks) + 1
            tasks.append(
                {
                    "workflow": "order",
                    "namespace": "demo",
                    "context": _order(number) | changes,
                    "key": f"run-{self._run_number}/order-{number}",
                    "labels": {"run": str(self._run_number)},
                }
            )
        task_ids = client.submit_many(tasks)
        self._task_ids += task_ids
        return task_ids

    def _kill(self, name: str) -> int:
        pid = self._shop.pid(name)
        self._screen.command(f"kill -9 {pid}")
        self._killed.add(pid)
        return self._shop.kill(name)

    def _follow(self, client: Client, task_id: int) -> dict[str, Any]:
        from .task.watch import follow

        self._screen.command(f"stepwire task watch {task_id}")
        if self._options.output == "text":
            return follow(self._options, client, task_id, WAIT_S)
        return client.wait(task_id, WAIT_S)


def _held(client: Client, task_ids: list[int]) -> list[dict[str, Any]] | None:
    """The held steps of these tasks, if each task has one; otherwise None."""
    held = [step for step in client.steps(state="held", limit=500)["steps"] if step["task_id"] in task_ids]
    return sorted(held, key=lambda step: int(step["task_id"])) if len(held) == len(task_ids) else None


def _order(number: int) -> dict[str, Any]:
    return {
        "order": number,
        "customer": CUSTOMERS[number % len(CUSTOMERS)],
        "city": "Utrecht",
        "items": ITEMS[: 1 + number % len(ITEMS)],
        "warehouse": "quiet",
        "bank": "quick",
    }


def _stepwire_command() -> str:
    """The command that runs this program from another directory."""
    program = Path(sys.argv[0])
    on_path = shutil.which("stepwire")
    if on_path is not None and Path(on_path).resolve() == program.resolve():
        return "stepwire"
    return shlex.quote(str(program.absolute())) if program.name == "stepwire" else f"{sys.executable} -m stepwire"


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _euros(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02} EUR"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat TERM as Ctrl-C, so that every started process is ended first."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
