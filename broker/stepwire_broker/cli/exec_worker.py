"""`stepwire exec-worker`: runs the programs of `executors.exec` as a worker of a broker, outside of the broker."""

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import click

from . import config_commands, output
from .failure import Exit, Failure
from .options import Options, StepwireCommand

if TYPE_CHECKING:
    from stepwire_broker.core.definitions.settings import Settings
    from stepwire_broker.executors.remote_host import RemoteHost

NAME_DEFAULT = "exec"


@click.command(name="exec-worker", cls=StepwireCommand)
@click.pass_obj
def exec_worker(options: Options) -> None:
    """Run the programs of executors.exec as a worker of a broker, under the user of this process.

    The variables of every worker apply: STEPWIRE_STEPS and STEPWIRE_RESULTS (default: bus.steps and bus.results of the
    configuration), STEPWIRE_CURVE_FILE, STEPWIRE_NAME, STEPWIRE_LABELS. TERM or Ctrl-C drains and stops the worker.
    """
    from stepwire_broker.open_files import raise_to_hard_limit

    from . import logs
    from .hardening import harden

    loaded = config_commands.load(options)
    config_commands.print_notes(options, loaded)
    host = _host(loaded.settings)
    logs.set_up(loaded.settings.log_level, options.verbosity)
    if os.geteuid() == 0:
        output.note(options, "the programs run as root: start this command as a user without other rights")
    raise_to_hard_limit()
    harden()
    asyncio.run(_run(options, loaded.settings, host))


def _host(settings: "Settings") -> "RemoteHost":
    from stepwire import ConfigurationError, curve, environment

    from stepwire_broker.core.definitions.settings import listed
    from stepwire_broker.executors.exec import KEY, BadCommand, Exec
    from stepwire_broker.executors.remote_host import RemoteHost

    if not settings.executors.exec.commands:
        raise Failure(
            Exit.USAGE,
            "executors.exec.commands names no program",
            "write the commands into a file, and name it: stepwire exec-worker -c FILE",
        )
    try:
        given = environment.read()
        steps = given.steps if os.environ.get("STEPWIRE_STEPS") else list(listed(settings.bus.steps))
        results = given.results if os.environ.get("STEPWIRE_RESULTS") else list(listed(settings.bus.results))
        return RemoteHost(
            KEY,
            Exec(settings),
            settings.bus,
            environment.links(steps, results, has_context=False),
            name=given.name or NAME_DEFAULT,
            labels=given.labels,
            keys=curve.keys(given.curve_server_key, given.curve_public_key, given.curve_secret_key),
        )
    except (ConfigurationError, BadCommand) as error:
        raise Failure(Exit.USAGE, str(error)) from None


async def _run(options: Options, settings: "Settings", host: "RemoteHost") -> None:
    from stepwire_broker.exec_runs.leftovers import end_earlier_runs
    from stepwire_broker.exec_runs.records import RunsRefused

    stop, stop_now = asyncio.Event(), asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set() and number == signal.SIGINT:
            stop_now.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        # Programs of an earlier process end before any step is accepted.
        await asyncio.to_thread(end_earlier_runs, settings.executors.exec.runs_dir, is_used=True)
        await host.prepare()
    except RunsRefused as error:
        raise Failure(Exit.FAILURE, str(error)) from None
    try:
        host.connect()
        _print_ready(options, settings, host)
        ended = asyncio.ensure_future(host.ended())
        await _first(asyncio.ensure_future(stop.wait()), ended)
        draining = asyncio.ensure_future(host.drain(settings.broker.drain_timeout_ms))
        await _first(draining, asyncio.ensure_future(stop_now.wait()))
    finally:
        await host.close()


async def _first(*waits: "asyncio.Future[Any]") -> None:
    """Wait for one of them, and cancel the others."""
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _print_ready(options: Options, settings: "Settings", host: "RemoteHost") -> None:
    handlers = list(settings.executors.exec.commands)
    facts = {"worker": host.worker, "pid": os.getpid(), "handlers": handlers, "slots": host.slots}
    text = f"stepwire exec-worker {host.worker} is ready: {host.slots} slots, offers {', '.join(handlers)}"
    output.one(options, facts, text)
