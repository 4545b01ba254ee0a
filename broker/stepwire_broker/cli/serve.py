"""`stepwire serve`: a broker and its HTTP API in one loop, until somebody says stop."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from stepwire_broker.configuration import loader

from . import config_commands, output
from .children import environ_of_handlers
from .failure import Exit, Failure
from .handlers import Handlers
from .options import Options, StepwireCommand
from .systemd import Systemd, without_systemd

if TYPE_CHECKING:
    import socket

    from stepwire_broker.api.token import Tokens
    from stepwire_broker.engine import Engine

FILE_CREATION_MASK = 0o077  # whatever this process makes is its owner's alone
SWITCH_INTERVAL_S = 0.0002  # how long a busy loop may keep the database's writer waiting for the interpreter
_SERVING = "serving"


@click.command(cls=StepwireCommand)
@click.option("--listen", metavar="HOST:PORT", help="The HTTP address. [http.listen]")
@click.option("--database", metavar="URL", help="Where the state lies. [database.url]")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting, e.g. --set bus.lease=5s.")
@click.option(
    "--with-handlers",
    "modules",
    metavar="PKG.MOD",
    multiple=True,
    help="Run the Worker of this Python module too, in a process of its own. Also PKG.MOD:NAME.",
)
@click.option(
    "--local",
    metavar="PKG.MOD",
    multiple=True,
    help="Run the Worker of this Python module in the broker's own process. [executors.local.modules]",
)
@click.pass_obj
def serve(
    options: Options,
    listen: str | None,
    database: str | None,
    settings: tuple[str, ...],
    modules: tuple[str, ...],
    local: tuple[str, ...],
) -> None:
    """Run the broker. TERM or Ctrl-C drains it and stops it; a second Ctrl-C stops it at once.

    HUP reads the configuration again and takes the log level, the tokens and the rules of routing from it: all of
    them, or, when anything is wrong, none.
    """
    flags = dict(_setting(text) for text in settings)
    flags |= {key: value for key, value in (("http.listen", listen), ("database.url", database)) if value is not None}
    if local:
        flags["executors.local.modules"] = ",".join(local)
    loaded = config_commands.load(options, flags)

    config_commands.say_notes(options, loaded)

    from . import logs

    logs.set_up(loaded.settings.log_level, options.verbosity)
    os.umask(FILE_CREATION_MASK)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    code = asyncio.run(_serve(options, loaded, flags, modules))
    sys.exit(int(code))


async def _serve(
    options: Options, loaded: loader.Configuration, flags: dict[str, str], modules: tuple[str, ...]
) -> Exit:
    from stepwire_broker.api.listening import ListenError, listen
    from stepwire_broker.api.server import Server
    from stepwire_broker.api.token import TokenError, open_tokens
    from stepwire_broker.engine import CannotStart, Engine
    from stepwire_broker.executors.host import BadExecutor
    from stepwire_broker.executors.registry import Executors

    settings = loaded.settings
    if modules and settings.bus.steps.startswith("inproc://"):
        raise Failure(
            Exit.USAGE,
            "--with-handlers starts a process, and bus.steps is inproc://, which none but the broker's own can reach",
            "use ipc:// (the default)",
        )
    try:
        tokens = open_tokens(settings.http.tokens_file)
        listener = listen(settings.http)
    except (TokenError, ListenError) as error:
        raise Failure(Exit.USAGE, str(error)) from None
    executors = Executors(settings)
    try:
        executors.configure()
    except (CannotStart, BadExecutor) as error:
        listener.close()
        raise Failure(Exit.USAGE, f"the broker cannot start: {error}", getattr(error, "hint", "")) from error
    broker = Engine(settings, companion=executors)
    systemd = Systemd()
    asked = _Signals(asyncio.get_running_loop(), _Reload(options, loaded, flags, tokens, systemd, broker))
    try:
        await _start(broker, listener)
        server = Server(broker, tokens, listener)
        await server.start()
        _keep_what_is_here()
        endpoints = broker.endpoints
        environ = environ_of_handlers(endpoints["steps"], endpoints["results"], server.url, str(tokens.file))
        handlers = [Handlers(module, without_systemd(environ)) for module in modules]
        _say_ready(options, loaded, broker, server.url, tokens)
        systemd.ready(_SERVING)
        return await _until_told(broker, server, handlers, asked, systemd)
    finally:
        asked.restore()
        systemd.close()
        listener.close()


def _keep_what_is_here() -> None:
    """The cyclic collector stops the loop. All that is here now stays, so it need not be looked at again."""
    gc.collect()
    gc.freeze()


async def _start(broker: "Engine", listener: "socket.socket") -> None:
    """A broker that cannot start says why in its own error; nothing of it stays."""
    from stepwire_broker.bus.endpoints import EndpointRefused
    from stepwire_broker.engine import CannotStart
    from stepwire_broker.store.errors import StoreRefused

    try:
        await broker.start()
    except (CannotStart, EndpointRefused, StoreRefused) as error:
        listener.close()
        await broker.stop()
        text = loader.shown_without_password(str(error), broker.settings.database.url)
        raise Failure(Exit.FAILURE, f"the broker cannot start: {text}", getattr(error, "hint", "")) from error


async def _until_told(
    broker: "Engine", server: Any, handlers: list[Handlers], asked: "_Signals", systemd: Systemd
) -> Exit:
    """Serve until a signal or a failure. A drain lets running steps finish; what does not is taken up again later."""
    stop: asyncio.Future[Any] = asyncio.ensure_future(asked.first.wait())
    kept: list[asyncio.Future[None]] = [each.start() for each in handlers]
    await asyncio.wait([stop, broker.failed, *kept], return_when=asyncio.FIRST_COMPLETED)
    try:
        systemd.stopping("draining")
        if not broker.failed.done():
            at_once = asyncio.ensure_future(asked.second.wait())
            draining = asyncio.ensure_future(_drain(broker, server, handlers))
            await asyncio.wait((at_once, draining, broker.failed), return_when=asyncio.FIRST_COMPLETED)
            at_once.cancel()
            draining.cancel()
        if broker.failed.done():
            raise Failure(Exit.FAILURE, f"the broker had to stop: {broker.failed.exception()}")
        for over in kept:
            if over.done() and not over.cancelled() and (refused := over.exception()) is not None:
                raise Failure(Exit.USAGE, str(refused))
        return Exit.FAILURE if asked.second.is_set() else Exit.OK
    finally:
        stop.cancel()
        for each in handlers:
            each.kill()
        await asyncio.gather(*kept, return_exceptions=True)
        await server.stop()
        await broker.stop()


async def _drain(broker: "Engine", server: Any, handlers: list[Handlers]) -> None:
    """The broker hands out nothing more before the handlers give anything back, and hears all that they still say: it
    leaves last."""
    draining = asyncio.ensure_future(broker.drain())
    try:
        await broker.handled()
        server.stop_waiting()
        drain_s = broker.settings.broker.drain_timeout_ms / 1000
        await asyncio.gather(*(each.stop(drain_s) for each in handlers))
        await draining
    finally:
        draining.cancel()


class _Reload:
    """The configuration again. The log level, the tokens and the routes can change while a broker runs; the rest is
    said to wait."""

    def __init__(
        self,
        options: Options,
        loaded: loader.Configuration,
        flags: dict[str, str],
        tokens: "Tokens",
        systemd: Systemd,
        broker: "Engine",
    ) -> None:
        self._broker = broker
        self._tokens = tokens
        self._options = options
        self._systemd = systemd
        self._running = loaded
        self._flags = flags

    def __call__(self) -> None:
        self._systemd.reloading()
        try:
            self._reload()
        finally:
            self._systemd.ready(_SERVING)

    def _reload(self) -> None:
        import structlog

        from stepwire_broker.api.token import TokenError
        from stepwire_broker.core.routing.router import RulesRefused

        from . import logs

        log = structlog.get_logger("stepwire.serve")
        try:
            loaded = loader.load(self._options.config_file, self._flags, os.environ)
            self._broker.check(loaded.settings.execution)  # all of it is right before any of it counts
            tokens = self._tokens.reload()
            self._broker.reconfigure(loaded.settings.execution)
        except (loader.SettingsError, RulesRefused, TokenError) as error:
            log.warning("reload_refused", error=str(error))
            return
        level = loaded.settings.log_level
        running = self._running.settings
        waiting = [key for key in loader.KEYS if loader.value_of(loaded.settings, key) != loader.value_of(running, key)]
        logs.set_level(level, self._options.verbosity)
        needs_restart = [key for key in waiting if key != "log_level" and not key.startswith("execution.")]
        log.warning("reloaded", log_level=level, tokens=tokens, needs_restart=needs_restart)


class _Signals:
    """TERM or INT asks to drain; INT again asks to leave at once; HUP asks for `reload`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._loop = loop
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked, number)
        loop.add_signal_handler(signal.SIGHUP, reload)

    def restore(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    def _asked(self, number: int) -> None:
        if not self.first.is_set():
            self.first.set()
        elif number == signal.SIGINT:
            self.second.set()


def _say_ready(options: Options, loaded: loader.Configuration, broker: "Engine", url: str, tokens: "Tokens") -> None:
    """One line with all that a handler and a client need to know, as they have to write it."""
    settings = loaded.settings
    facts = {
        "broker": broker.broker_id,
        "http": url,
        **{name: broker.endpoints[name] for name in ("steps", "results")},
        "database": loader.without_password(settings.database.url),
        "token_file": str(tokens.file),
        "config": loaded.file and str(loaded.file),
    }
    if options.output == "text":
        text = (
            f"stepwire {facts['broker']} is ready: {url}, handlers connect to {facts['steps']} and {facts['results']},"
            f" state in {facts['database']}, token in {facts['token_file']};"
            " next: stepwire workflow apply FILE, stepwire task submit WORKFLOW"
        )
        click.echo(text)
    else:
        output.one(options, facts, "")
    sys.stdout.flush()


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise Failure(Exit.USAGE, f"--set {text}: it needs a form like bus.lease=5s")
    return key.strip(), value
