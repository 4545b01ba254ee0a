"""`stepwire serve`: runs a broker and its HTTP API in one event loop until a signal stops it."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from stepwire_broker.configuration import hidden, loader
from stepwire_broker.core.definitions.settings import listed

from . import config_commands, output
from .children import handler_environ
from .failure import Exit, Failure
from .handlers import Handlers
from .hardening import harden
from .options import Options, StepwireCommand
from .systemd import Systemd, without_systemd

if TYPE_CHECKING:
    from stepwire_broker.api.listening import Listeners
    from stepwire_broker.api.tls_files import Certificates
    from stepwire_broker.api.token import Tokens
    from stepwire_broker.bus.sockets import Bound
    from stepwire_broker.core.definitions.settings import Settings
    from stepwire_broker.engine import Engine

SWITCH_INTERVAL_S = 0.0002  # the longest time that a busy loop keeps the database writer waiting for the interpreter
_SERVING = "serving"


@click.command(cls=StepwireCommand)
@click.option("--listen", metavar="HOST:PORT", help="HTTP address. [http.listen]")
@click.option("--database", metavar="URL", help="Database that holds the state. [database.url]")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any setting: --set bus.lease=5s.")
@click.option(
    "--with-handlers",
    "modules",
    metavar="PKG.MOD",
    multiple=True,
    help="Also run the Worker of this Python module, in a separate process. PKG.MOD:NAME selects one of several.",
)
@click.option(
    "--local",
    metavar="PKG.MOD",
    multiple=True,
    help="Run the Worker of this Python module in the broker's process. [executors.local.modules]",
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
    """Run a broker. TERM or Ctrl-C drains and stops it; a second Ctrl-C stops it at once.

    HUP reloads the log level, the tokens, the certificate, the client files, the routing rules and the quotas. If
    anything in it is wrong, nothing changes.
    """
    flags = dict(_setting(text) for text in settings)
    flags |= {key: value for key, value in (("http.listen", listen), ("database.url", database)) if value is not None}
    if local:
        flags["executors.local.modules"] = ",".join(local)
    loaded = config_commands.load(options, flags)

    config_commands.print_notes(options, loaded)
    if modules and all(each.startswith("inproc://") for each in listed(loaded.settings.bus.steps)):
        raise Failure(
            Exit.USAGE,
            "--with-handlers starts another process, but bus.steps is inproc://, which only this process can reach",
            "use ipc:// (the default)",
        )

    from stepwire_broker.free_memory import return_large_blocks
    from stepwire_broker.open_files import raise_to_hard_limit

    from . import logs

    logs.set_up(loaded.settings.log_level, options.verbosity)
    raise_to_hard_limit()
    harden()
    return_large_blocks()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    code = asyncio.run(_serve(options, loaded, flags, modules))
    sys.exit(int(code))


async def _serve(
    options: Options, loaded: loader.Configuration, flags: dict[str, str], modules: tuple[str, ...]
) -> Exit:
    from stepwire_broker.api.server import Server

    config_commands.check_database(loaded.settings)
    _make_key(loaded.settings)
    tokens, listeners = _open_http(loaded.settings)
    broker = _engine(loaded.settings, tokens, listeners)
    systemd = Systemd()
    signals = _Signals(
        asyncio.get_running_loop(), _Reload(options, loaded, flags, tokens, listeners.certificates, systemd, broker)
    )
    try:
        await _start(broker, tokens, listeners)
        server = Server(broker, tokens, listeners)
        await server.start()
        _note_url(loaded, listeners.url_of_directory)
        _freeze_objects()
        endpoints = broker.endpoints
        environ = handler_environ(
            endpoints["steps"],
            endpoints["results"],
            listeners.url_of_user,
            str(tokens.file),
            broker.settings.handlers.pass_env,
        )
        handlers = [Handlers(module, without_systemd(environ)) for module in modules]
        _print_ready(options, loaded, broker, listeners, tokens)
        systemd.ready(_SERVING)
        return await _run_until_stopped(broker, server, handlers, signals, systemd)
    finally:
        signals.restore()
        systemd.close()
        listeners.close()


def _make_key(settings: "Settings") -> None:
    """Make the key file at the first start. A broker that can make none starts, unless a file needs an earlier key."""
    from stepwire_broker.security_key import SecurityKeyError, ensure

    try:
        ensure(settings.security)
    except SecurityKeyError as error:
        if Path(settings.security.erasures_file).exists() or os.path.lexists(settings.security.key_file):
            raise Failure(Exit.USAGE, str(error)) from None


def _open_http(settings: "Settings") -> "tuple[Tokens, Listeners]":
    from stepwire_broker.api.listening import ListenError, listen_everywhere
    from stepwire_broker.api.token import TokenError, open_tokens

    try:
        # Before the socket exists: a command that finds the address also finds the token.
        tokens = open_tokens(settings.http.tokens_file, is_strict=settings.security.strict)
    except TokenError as error:
        raise Failure(Exit.USAGE, str(error)) from None
    try:
        return tokens, listen_everywhere(settings.http, is_strict=settings.security.strict)
    except ListenError as error:
        tokens.discard()
        raise Failure(Exit.USAGE, str(error)) from None


def _note_url(loaded: loader.Configuration, url: str) -> None:
    """Write the address for the commands in this directory. Without the file they use `http.listen`."""
    from stepwire_broker.api.token import TokenError, note_url

    if loaded.settings.http.tokens_file is not None:
        return
    with suppress(TokenError):  # a directory that became read-only must not stop a broker
        note_url(url)


def _engine(settings: "Settings", tokens: "Tokens", listeners: "Listeners") -> "Engine":
    from stepwire_broker.engine import CannotStart, Engine
    from stepwire_broker.executors.host import BadExecutor
    from stepwire_broker.executors.registry import Executors

    executors = Executors(settings)
    try:
        executors.configure()
    except (CannotStart, BadExecutor) as error:
        listeners.close()
        tokens.discard()
        raise Failure(Exit.USAGE, f"the broker cannot start: {error}", getattr(error, "hint", "")) from error
    return Engine(settings, companion=executors)


def _freeze_objects() -> None:
    """Exclude all existing objects from garbage collection: they live as long as the broker, and a collection blocks
    the loop."""
    gc.collect()
    gc.freeze()


async def _start(broker: "Engine", tokens: "Tokens", listeners: "Listeners") -> None:
    """Start the broker. If it cannot start, stop all its parts, and raise Failure with the reason."""
    from stepwire_broker.bus.endpoints import EndpointRefused
    from stepwire_broker.engine import CannotStart
    from stepwire_broker.store.errors import InUse, StoreRefused

    try:
        await broker.start()
    except (CannotStart, EndpointRefused, StoreRefused) as error:
        listeners.close()
        await broker.stop()
        if not isinstance(error, InUse):
            tokens.discard()  # a broker that has the database uses this token
        text = loader.shown_without_password(str(error), broker.settings.database.url)
        raise Failure(Exit.FAILURE, f"the broker cannot start: {text}", getattr(error, "hint", "")) from error


async def _run_until_stopped(
    broker: "Engine", server: Any, handlers: list[Handlers], signals: "_Signals", systemd: Systemd
) -> Exit:
    """Serve until a signal or a failure. A drain lets running steps finish; the next start resumes the others."""
    stop: asyncio.Future[Any] = asyncio.ensure_future(signals.drain.wait())
    processes: list[asyncio.Future[None]] = [each.start() for each in handlers]
    await asyncio.wait([stop, broker.failed, *processes], return_when=asyncio.FIRST_COMPLETED)
    try:
        systemd.stopping("draining")
        if not broker.failed.done():
            at_once = asyncio.ensure_future(signals.stop_now.wait())
            draining = asyncio.ensure_future(_drain(broker, server, handlers))
            await asyncio.wait((at_once, draining, broker.failed), return_when=asyncio.FIRST_COMPLETED)
            at_once.cancel()
            draining.cancel()
        if broker.failed.done():
            raise Failure(Exit.FAILURE, f"the broker had to stop: {broker.failed.exception()}")
        for process in processes:
            if process.done() and not process.cancelled() and (refused := process.exception()) is not None:
                raise Failure(Exit.USAGE, str(refused))
        return Exit.FAILURE if signals.stop_now.is_set() else Exit.OK
    finally:
        stop.cancel()
        for each in handlers:
            each.kill()
        await asyncio.gather(*processes, return_exceptions=True)
        await server.stop()
        await broker.stop()


async def _drain(broker: "Engine", server: Any, handlers: list[Handlers]) -> None:
    """Drain the broker first, so that steps which handlers return are not dispatched again, then the handlers. The
    broker stops last, so that it receives their results."""
    draining = asyncio.ensure_future(broker.drain())
    try:
        await broker.handled()
        server.stop_waiting()
        drain_s = broker.settings.broker.drain_timeout_ms / 1000
        await asyncio.gather(*(each.stop(drain_s) for each in handlers))
        await draining
    finally:
        draining.cancel()


_LIVE: Final = frozenset({"log_level", "limits.namespaces"})  # and `execution`


class _Reload:
    """Reloads the log level, the tokens, the certificate, the client files, the routing rules and the quotas.

    Other changed settings are logged as `needs_restart`.
    """

    def __init__(
        self,
        options: Options,
        loaded: loader.Configuration,
        flags: dict[str, str],
        tokens: "Tokens",
        certificates: "Certificates | None",
        systemd: Systemd,
        broker: "Engine",
    ) -> None:
        self._broker = broker
        self._tokens = tokens
        self._certificates = certificates
        self._options = options
        self._systemd = systemd
        self._running = loaded
        self._flags = flags
        self._reading: asyncio.Future[Any] | None = None  # of the client files; a reference keeps it alive

    def __call__(self) -> None:
        self._systemd.reloading()
        try:
            self._reload()
        finally:
            self._systemd.ready(_SERVING)

    def _reload(self) -> None:
        import structlog

        from stepwire_broker.api.tls_files import TlsError
        from stepwire_broker.api.token import TokenError
        from stepwire_broker.core.routing.router import RulesRefused

        from . import logs

        log = structlog.get_logger("stepwire.serve")
        try:
            loaded = loader.load(self._options.config_file, self._flags, os.environ)
            self._broker.check(loaded.settings.execution)  # everything is checked before anything changes
            reading = None if self._certificates is None else self._certificates.read()
            tokens = self._tokens.reload()
            if self._certificates is not None and reading is not None:
                self._certificates.use(reading)
            self._broker.reconfigure(loaded.settings.execution, loaded.settings.limits.namespaces)
            self._reading = asyncio.ensure_future(self._broker.core_loop.wire.reload_clients())
        except (loader.SettingsError, RulesRefused, TlsError, TokenError) as error:
            log.warning("reload_refused", error=str(error))
            return
        level = loaded.settings.log_level
        running = self._running.settings
        changed = [key for key in loader.KEYS if loader.value_of(loaded.settings, key) != loader.value_of(running, key)]
        logs.set_level(level, self._options.verbosity)
        needs_restart = [key for key in changed if key not in _LIVE and not key.startswith("execution.")]
        log.warning("reloaded", log_level=level, tokens=tokens, needs_restart=needs_restart)


class _Signals:
    """TERM or INT requests a drain; a second INT requests an immediate stop; HUP calls `reload`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> None:
        self.drain = asyncio.Event()
        self.stop_now = asyncio.Event()
        self._loop = loop
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        loop.add_signal_handler(signal.SIGHUP, reload)

    def restore(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.remove_signal_handler(number)

    def _on_stop_signal(self, number: int) -> None:
        if not self.drain.is_set():
            self.drain.set()
        elif number == signal.SIGINT:
            self.stop_now.set()


def _print_ready(
    options: Options, loaded: loader.Configuration, broker: "Engine", listeners: "Listeners", tokens: "Tokens"
) -> None:
    """Print one line with the addresses and files that handlers and clients need."""
    settings, url, pairs = loaded.settings, listeners.url, broker.core_loop.wire.bound
    socket_url = listeners.local and listeners.local.absolute_url
    facts = {
        "broker": broker.broker_id,
        "http": url,
        "http_socket": socket_url,
        **{name: broker.endpoints[name] for name in ("steps", "results")},
        "listeners": [{"steps": pair.steps, "results": pair.results, "curve": pair.has_curve} for pair in pairs],
        "insecure": broker.insecure(),
        "database": hidden.without_password(settings.database.url),
        "token_file": str(tokens.file) if tokens.file.exists() else None,
        "config": loaded.file and str(loaded.file),
    }
    if options.output == "text":
        text = (
            f"stepwire {facts['broker']} is ready: {url}, handlers connect to {_shown_listeners(pairs)},"
            f" state in {facts['database']}, {_shown_token(tokens)};{_shown_posture(broker.insecure())}"
            " next: stepwire workflow apply FILE, then stepwire task submit WORKFLOW"
        )
        click.echo(text)
    else:
        output.one(options, facts, "")
    sys.stdout.flush()


def _shown_listeners(pairs: "tuple[Bound, ...]") -> str:
    return ", or ".join(f"{pair.steps} and {pair.results}{' (with keys)' if pair.has_curve else ''}" for pair in pairs)


def _shown_token(tokens: "Tokens") -> str:
    return f"token in {tokens.file}" if tokens.file.exists() else "no token file: use the Unix socket"


def _shown_posture(insecure: list[str]) -> str:
    from stepwire_broker.posture import INSECURE

    return "".join(f" insecure: {INSECURE[what]};" for what in insecure)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise Failure(Exit.USAGE, f"--set {text}: use a form like bus.lease=5s")
    return key.strip(), value
