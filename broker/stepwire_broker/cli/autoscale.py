"""`stepwire worker autoscale`: keeps as many copies of a worker command as its backlog needs."""

import asyncio
import signal
from typing import TYPE_CHECKING, Final

import click
import msgspec

from . import output
from .backlog import SLOTS_MAX, labels_of
from .connection import failure_of, open_client
from .failure import Exit, Failure, usage
from .options import Options, StepwireCommand
from .task.waiting import seconds

if TYPE_CHECKING:
    from stepwire_broker.autoscale.supervisor import CopiedCommand, CopyEvent, Supervisor

COPIES_MAX: Final = 1_000
STEP: Final = 4
COOLDOWN: Final = "30s"
DRAIN: Final = "30s"


@click.command(cls=StepwireCommand)
@click.argument("command", metavar="-- CMD..", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--handler", "handlers", metavar="HANDLER", multiple=True, required=True, help="Handler that the command offers."
)
@click.option("--labels", metavar="KEY=VALUE,..", multiple=True, help="Labels of the copies; sets STEPWIRE_LABELS.")
@click.option(
    "--min", "least", metavar="N", type=click.IntRange(0, COPIES_MAX), default=1, help="Smallest number of copies. [1]"
)
@click.option(
    "--max", "most", metavar="N", type=click.IntRange(1, COPIES_MAX), default=10, help="Largest number of copies. [10]"
)
@click.option(
    "--step",
    metavar="N",
    type=click.IntRange(1, COPIES_MAX),
    default=STEP,
    help=f"Copies started at a time; further ones follow when these are connected. [{STEP}]",
)
@click.option(
    "--cooldown",
    metavar="DURATION",
    default=COOLDOWN,
    help=f"Time from a change until one copy ends, because fewer than half of the slots are in use. [{COOLDOWN}]",
)
@click.option(
    "--slots",
    metavar="N",
    type=click.IntRange(1, SLOTS_MAX),
    help="Slots of a copy; sets STEPWIRE_SLOTS. [the first copy names its slots]",
)
@click.option(
    "--drain",
    metavar="DURATION",
    default=DRAIN,
    help=f"Time for the copies to finish when this command ends. [{DRAIN}]",
)
@click.pass_obj
def autoscale(
    options: Options,
    command: tuple[str, ...],
    handlers: tuple[str, ...],
    labels: tuple[str, ...],
    least: int,
    most: int,
    step: int,
    cooldown: str,
    slots: int | None,
    drain: str,
) -> None:
    """Keep as many copies of a worker command on this host as its backlog needs, in any language.

    Copies start at once while steps wait without a slot, and end one at a time when they are idle: each finishes its
    steps first. A copy that dies is replaced. TERM or Ctrl-C ends the copies in the same way. The variables of every
    worker apply (STEPWIRE_STEPS, STEPWIRE_RESULTS, STEPWIRE_CURVE_FILE), and the copies inherit them. The token needs
    the scopes read and operate; copies do not receive it.
    """
    from stepwire import ConfigurationError

    if least > most:
        usage(f"--min {least} is more than --max {most}")
    having = labels_of(labels)
    supervised = _command(command, having, (least, most, step), seconds(cooldown) or 0.0, slots, seconds(drain) or 0.0)
    options.outage = options.outage or "0s"  # each look is soon followed by another one
    try:
        asyncio.run(_run(options, supervised, handlers, having))
    except ConfigurationError as error:
        raise Failure(Exit.USAGE, str(error)) from None


def _command(
    argv: tuple[str, ...],
    labels: dict[str, str],
    sizes: tuple[int, int, int],
    cooldown_s: float,
    slots: int | None,
    drain_s: float,
) -> "CopiedCommand":
    from stepwire_broker.autoscale.deciding import CopyLimits
    from stepwire_broker.autoscale.supervisor import CopiedCommand

    environ = {}
    if labels:
        environ["STEPWIRE_LABELS"] = ",".join(f"{key}={value}" for key, value in labels.items())
    if slots is not None:
        environ["STEPWIRE_SLOTS"] = str(slots)
    limits = CopyLimits(*sizes, cooldown_ms=int(cooldown_s * 1000))
    return CopiedCommand(argv=argv, environ=environ, limits=limits, slots=slots, drain_s=drain_s)


async def _run(options: Options, command: "CopiedCommand", handlers: tuple[str, ...], labels: dict[str, str]) -> None:
    from stepwire_protocol import host

    from stepwire_broker.autoscale.deaths import DeathReports
    from stepwire_broker.autoscale.look import BrokerQuestions, NoAnswer
    from stepwire_broker.autoscale.output import Passing
    from stepwire_broker.autoscale.supervisor import StartsFail, Supervisor

    identity = host.identity()
    if not identity:
        raise Failure(Exit.USAGE, "autoscale needs a /proc of its own pid namespace, by which it recognises its copies")
    with open_client(options) as client:
        questions = BrokerQuestions(client, identity, handlers, labels)
        first = await asyncio.to_thread(questions.look, command.slots)
        if isinstance(first, NoAnswer) and first.is_refusal:
            raise failure_of(options, first.error)
        supervisor = Supervisor(command, questions, DeathReports(), Passing(), lambda event: _print(options, event))
        stop = asyncio.Event()
        _end_on_signals(supervisor, stop)
        try:
            await supervisor.run(stop)
            await supervisor.end()
        except StartsFail as error:
            hint = (
                f"it printed at its end:\n{error.printed.rstrip()}" if error.printed.strip() else "it printed nothing"
            )
            raise Failure(Exit.FAILURE, str(error), hint) from None
        finally:
            supervisor.close()


def _end_on_signals(supervisor: "Supervisor", stop: asyncio.Event) -> None:
    def on_signal(number: int) -> None:
        if stop.is_set() and number == signal.SIGINT:
            supervisor.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)


def _print(options: Options, event: "CopyEvent") -> None:
    """Print one line for each change: a JSON object, or a sentence."""
    if options.output == "text":
        output.echo(event.text)
    else:
        click.echo(msgspec.json.encode(event).decode())
