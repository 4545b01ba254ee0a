"""`stepwire demo`: the product's first minute. Real processes, a real kill -9, and at the end what the ledgers prove.

Each line comes from the broker's answers, from the books that the handlers write, or from a clock; each command that
is shown does what is done here by the same calls.
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
from .failure import Exit, Failure, leave
from .options import Options, StepwireCommand

if TYPE_CHECKING:
    from rich.console import Console

    from stepwire_broker.demo.books import LedgerRun
    from stepwire_broker.demo.proof import Proof
    from stepwire_broker.demo.shop import Language, Shop

DIRECTORY: Final = Path(".stepwire-demo")
CROWD: Final = 24
DOOMED_RUNS: Final = 5  # that the worker is at when it is killed
FRESH_NS: Final = 500_000_000  # half of what packing takes
BREATH_S: Final = 1.5  # between the acts, for whoever reads along
WAIT_S: Final = 30.0

HELD_COLUMNS: Final = [
    output.Column("step", "step_id"),
    output.Column("task", "task_id"),
    output.Column("name", "name"),
    output.Column("why", "why"),
]

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
    help="Where the state is kept. Run again, it goes on there.",
)
@click.pass_obj
def demo(options: Options, directory: Path) -> None:
    """Show it working, in less than a minute: a broker, workers in several languages, a kill -9, and a held payment."""
    from stepwire_broker.demo.shop import DemoFailed, Shop

    _import_all()
    started_s = time.monotonic()
    try:
        with _interruptible(), Shop(directory) as shop:
            story = _Story(options, shop)
            proofs = story.tell()
    except KeyboardInterrupt:
        output.note(options, f"\nstopped: every process has ended, and the state is kept in {directory}/")
        leave(Exit.FAILURE)
    except (DemoFailed, ClientError) as error:
        raise Failure(Exit.FAILURE, f"the demo cannot go on: {error}") from None
    story.end(proofs, time.monotonic() - started_s)
    if not all(proof.holds for proof in proofs):
        raise Failure(Exit.FAILURE, "not everything that was promised is so", f"see the books in {directory}/")


def _import_all() -> None:
    """What the story needs, before it can be interrupted: Python takes an interrupt that strikes while a module makes
    its classes for one that nobody has handled, and ends by the signal, whatever is made of it afterwards."""
    for name in ("rich.markup", "rich.progress", "rich.table", "stepwire_broker.demo.proof", f"{__package__}.watch"):
        importlib.import_module(name)


class _Story:
    """What happens, in order, and how it is told."""

    def __init__(self, options: Options, shop: "Shop") -> None:
        self._options = options
        self._shop = shop
        self._console = _console(options)
        self._task_ids: list[int] = []
        self._killed: set[int] = set()
        self._resolved: set[int] = set()
        self._recovered_s: list[float] = []
        self._run = 0

    def tell(self) -> "list[Proof]":
        client = self._open()
        self._one_order(client)
        self._one_that_cannot_be_shipped(client)
        self._a_worker_is_killed(client)
        self._a_payment_is_held(client)
        return self._prove(client)

    # -- the acts -----------------------------------------------------------------------------------------------------

    def _open(self) -> Client:
        from stepwire_broker.demo import shop as rooms

        shop = self._shop
        self._run = shop.next_run()
        self._say(f"[bold]Stepwire demo[/], run {self._run} in {shop.directory}/")
        client = shop.open()
        here, missing = shop.languages()
        client.apply_workflow_text(rooms.WORKFLOW.read_bytes(), "application/yaml")
        shop.leave_to_play_with(here, _order(1))
        for name, offer in (("shop-1", "shop"), ("shop-2", "shop"), ("payments", "payments")):
            shop.start_worker(name, offer)
        for language in here:
            shop.start_level0(language)
        shop.until_connected(client, "shop-1", "shop-2", "payments")
        workers = ", ".join(f"{name} ({shop.pid(name)})" for name in ("shop-1", "shop-2", "payments"))
        loops = ", ".join(f"{one.name} ({shop.pid(f'level0-{one.name}')})" for one in here)
        self._say(f"  broker   ({shop.pid('broker')}) at {shop.url}")
        self._say(f"  workers  {workers}: Python, with the SDK")
        self._say(f"  level 0  {loops}: a loop each, without")
        self._say_missing(missing)
        left = len(client.tasks(state="running", limit=500)["tasks"])
        if left:
            self._say(f"  [dim]{left} orders of an earlier run are not done: they go on meanwhile, or are held[/]")
        return client

    def _one_order(self, client: Client) -> None:
        self._title("An order", "price and invoice run without an SDK; stock fails once, and is tried again")
        document = self._follow(client, self._submit(client, {"warehouse": "busy"}))
        outputs = {step["name"]: step["output"] or {} for step in document["steps"]}
        by = [f"{name} by {outputs[name].get('language')}" for name in ("price", "invoice")]
        self._say(f"Without an SDK: {', '.join(by)}.")
        self._say(f"The result: {output.shortened(document['result'])}")

    def _one_that_cannot_be_shipped(self, client: Client) -> None:
        self._title("An order to Atlantis", "it is paid, cannot be shipped, and so a trigger rule runs refund")
        task_id = self._submit(client, {"city": "Atlantis"})
        document = self._follow(client, task_id)
        cents = next(step["output"] for step in document["steps"] if step["name"] == "refund")["cents"]
        self._say(f"{_euros(cents)} went back to {document['context']['customer']}.")

    def _a_worker_is_killed(self, client: Client) -> None:
        self._title(f"{CROWD} orders, and kill -9", "what the killed worker was doing runs again elsewhere")
        task_ids = self._submit_many(client, [{} for _ in range(CROWD)])
        with self._progress(client, task_ids) as look:
            doomed = self._shop.until(lambda: self._at_work("shop-1", look), "shop-1 has enough to do", WAIT_S)
            pid = self._shop.pid("shop-1")
            self._say(f"shop-1 is packing {len(doomed)} orders, one of them that of task {doomed[0].task_id}.")
            killed_ns = self._kill("shop-1")
            lost = self._unfinished(pid)
            again = self._shop.until(lambda: self._begun_again(lost, pid, look), "the steps of shop-1 run again")
            self._recovered_s = [(run.at_ns - killed_ns) / 1e9 for run in again]
            self._say(f"It was running {len(lost)} steps. They run again on shop-2:")
            self._say(
                f"the first {_took(min(self._recovered_s))} after the kill, the last {_took(max(self._recovered_s))}."
            )
            self._shop.until(lambda: look() == len(task_ids) or None, "all orders done", WAIT_S)
        self._say(f"{len(task_ids)} of {len(task_ids)} orders are done.")

    def _a_payment_is_held(self, client: Client) -> None:
        from stepwire_broker.demo import books

        self._title("A payment that may have happened", "nobody can know, so nobody guesses")
        shop = self._shop
        (shop.directory / books.BANK_IS_SLOW).touch()
        task_ids = self._submit_many(client, [{"bank": "answers late"}, {"bank": "books late"}])
        shop.until(lambda: self._both_at_the_bank(task_ids), "both payments at the bank")
        self._say(f"Tasks {task_ids[0]} and {task_ids[1]} are at the bank, which is slow.")
        self._kill("payments")
        shop.until(lambda: _held(client, task_ids), "both payments held")
        (shop.directory / books.BANK_IS_SLOW).unlink()
        shop.start_worker("payments-2", "payments")
        shop.until_connected(client, "payments-2")
        held = shop.until(lambda: _held(client, task_ids), "both payments held still")
        self._command("stepwire step list --state held")
        self._show_held(held)
        self._say("The new worker, payments-2, gets neither: that could charge a card twice.")
        booked = {one.task_id: one for one in books.read_bank(shop.directory) if one.what == "charge"}
        for step in held:
            self._resolve(client, step, booked.get(step["task_id"]))
        for task_id in task_ids:
            client.wait(task_id, WAIT_S)
        self._say(", ".join(f"task {task_id} is {client.task(task_id)['state']}" for task_id in task_ids))

    def _resolve(self, client: Client, step: dict[str, Any], booking: Any) -> None:
        name = f"{step['task_id']}/{step['name']}"
        self._resolved.add(step["step_id"])
        if booking is None:
            reason = "not in the bank's book"
            self._say(f"The bank's book has nothing of task {step['task_id']}, so it may run:")
            self._command(f'stepwire step resolve {name} --retry --reason "{reason}"')
            client.resolve(step["step_id"], "retry", reason=reason)
            return
        reason = "it is in the bank's book"
        found = {"transaction": booking.transaction, "cents": booking.cents}
        self._say(f"The bank's book has {_euros(booking.cents)} of task {step['task_id']}, so it is done:")
        self._command(
            f"stepwire step resolve {name} --completed '{msgspec.json.encode(found).decode()}' --reason \"{reason}\""
        )
        client.resolve(step["step_id"], "completed", output=found, reason=reason)

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
                "run": self._run,
                "directory": str(self._shop.directory),
                "tasks": len(self._task_ids),
                "recovered_s": sorted(self._recovered_s),
                "proofs": [proof._asdict() for proof in proofs],
                "took_s": took_s,
            }
            output.one(self._options, facts, "")
            return
        self._title("What was proven", "by what the handlers and the bank wrote down, not by the broker's word")
        for proof in proofs:
            self._point("[green]✓[/]" if proof.holds else "[red]✗ not so:[/]", proof.sentence)
        self._say(f"\nThat took {took_s:.0f} s; every process has ended, and the state is kept. Play on:")
        ourselves = _ourselves()
        self._command(f"cd {self._shop.directory} && {ourselves} dev")
        self._say("and there, in another terminal:")
        self._command(f"{ourselves} task submit demo::order --context @order.json --follow")
        self._command(f"{ourselves} task events {self._task_ids[-1]}")

    # -- what is looked at --------------------------------------------------------------------------------------------

    def _at_work(self, name: str, look: Callable[[], int]) -> "list[LedgerRun] | None":
        """What it packs, once that is enough, and will not be done before we can kill it."""
        look()
        since_ns = time.time_ns() - FRESH_NS
        packing = [run for run in self._unfinished(self._shop.pid(name)) if run.step == "pack" and run.at_ns > since_ns]
        return packing if len(packing) >= DOOMED_RUNS else None

    def _unfinished(self, pid: int) -> "list[LedgerRun]":
        """What this process has begun and not ended."""
        from stepwire_broker.demo import books

        runs = [run for run in books.read_runs(self._shop.directory) if run.pid == pid]
        ended = {run.step_id for run in runs if run.event != "started"}
        return [run for run in runs if run.step_id not in ended]

    def _begun_again(self, lost: "list[LedgerRun]", pid: int, look: Callable[[], int]) -> "list[LedgerRun] | None":
        from stepwire_broker.demo import books

        look()
        wanted = {run.step_id for run in lost}
        runs = books.read_runs(self._shop.directory)
        again = [run for run in runs if run.step_id in wanted and run.pid != pid and run.event == "started"]
        return again if {run.step_id for run in again} == wanted else None

    def _both_at_the_bank(self, task_ids: list[int]) -> bool | None:
        """Both have begun, and the one whose bank only answers late has been booked."""
        from stepwire_broker.demo import books

        begun = {run.task_id for run in books.read_runs(self._shop.directory) if run.step == "charge"}
        booked = {one.task_id for one in books.read_bank(self._shop.directory)}
        return (begun.issuperset(task_ids) and task_ids[0] in booked) or None

    # -- what is done -------------------------------------------------------------------------------------------------

    def _submit(self, client: Client, changes: dict[str, Any]) -> int:
        return self._submit_many(client, [changes])[0]

    def _submit_many(self, client: Client, orders: list[dict[str, Any]]) -> list[int]:
        """With a key each, so that a lost answer could not make two orders of one."""
        tasks: list[dict[str, Any]] = []
        for changes in orders:
            number = len(self._task_ids) + len(tasks) + 1
            tasks.append(
                {
                    "workflow": "order",
                    "namespace": "demo",
                    "context": _order(number) | changes,
                    "key": f"run-{self._run}/order-{number}",
                    "labels": {"run": str(self._run)},
                }
            )
        task_ids = client.submit_many(tasks)
        self._task_ids += task_ids
        return task_ids

    def _kill(self, name: str) -> int:
        pid = self._shop.pid(name)
        self._command(f"kill -9 {pid}")
        self._killed.add(pid)
        return self._shop.kill(name)

    def _follow(self, client: Client, task_id: int) -> dict[str, Any]:
        from .watch import show

        self._command(f"stepwire task watch {task_id}")
        seen = [client.task(task_id)]
        if self._options.output == "text":
            show(self._options, client, seen, WAIT_S)
        else:
            seen = [client.wait(task_id, WAIT_S)]
        return seen[-1]

    @contextmanager
    def _progress(self, client: Client, task_ids: list[int]) -> "Iterator[Callable[[], int]]":
        """Call the result to look how many of these tasks are done; on a terminal a bar shows it."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        wanted = set(task_ids)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        is_hidden = not self._console.is_terminal
        with Progress(*columns, console=self._console, transient=True, disable=is_hidden) as bar:
            shown = bar.add_task("orders done", total=len(task_ids))

            def look() -> int:
                page = client.tasks(label=f"run={self._run}", state="completed", limit=500)["tasks"]
                done = sum(task["task_id"] in wanted for task in page)
                bar.update(shown, completed=done)
                return done

            yield look

    # -- how it is told -----------------------------------------------------------------------------------------------

    def _title(self, title: str, about: str) -> None:
        if self._console.is_terminal:
            time.sleep(BREATH_S)
        self._say(f"\n[bold cyan]{title}[/]\n[dim]{about}[/]")

    def _command(self, text: str) -> None:
        from rich.markup import escape

        self._say(f"[yellow]$ {escape(text)}[/]")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=not self._console.is_terminal)

    def _point(self, sign: str, text: str) -> None:
        """A sentence that hangs behind its sign."""
        from rich.table import Table

        if not self._console.is_terminal:
            self._say(f"{sign} {text}")
            return
        row = Table.grid(padding=(0, 1))
        row.add_row(sign, text)
        self._console.print(row, highlight=False)

    def _show_held(self, held: list[dict[str, Any]]) -> None:
        if self._options.output == "text":
            rows = [{**step, "why": step["reason"]["message"]} for step in held]
            output.several(self._options, rows, HELD_COLUMNS, "")

    def _say_missing(self, missing: "list[Language]") -> None:
        for language in missing:
            self._say(f"           [dim]not here: {language.name} ({language.install})[/]")


def _held(client: Client, task_ids: list[int]) -> list[dict[str, Any]] | None:
    """The held steps of these tasks, once each has one."""
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


def _ourselves() -> str:
    """How whoever reads this can call us from another directory."""
    called = Path(sys.argv[0])
    on_path = shutil.which("stepwire")
    if on_path is not None and Path(on_path).resolve() == called.resolve():
        return "stepwire"
    return shlex.quote(str(called.absolute())) if called.name == "stepwire" else f"{sys.executable} -m stepwire"


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _euros(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02} EUR"


def _console(options: Options) -> "Console":
    from rich.console import Console

    return Console(quiet=options.output != "text")


@contextmanager
def _interruptible() -> Iterator[None]:
    """TERM ends it as Ctrl-C does: everything that was started is ended first."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
