"""Makes each mistake with the worker of one SDK, and returns the sentence that the worker printed or reported."""

import contextlib
import http.server
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import zmq
from stepwire_conform.endpoints import PrivateEndpoints
from stepwire_conform.keys import ServerKeys
from stepwire_conform.setting import Setting
from stepwire_conform.stage import Stage

from tests.languages.sdks import Sdk
from tests.system.harness import Site, eventually, free_ports, workflow

from . import old_toolchains
from .sentence import NoSentence, check_traces, logged, normalised, of_program

ENOUGH_S: Final = 25.0  # for a start on a busy machine, and the three seconds of `no broker for 3 s`
MORE_S: Final = 0.3  # in which a second line would follow
PREFIX: Final = "stepwire: "  # with which the conformance workers print a ConfigurationError


class Bench:
    """One SDK with a scratch directory. Each mistake is a method with its name; a method returns the raw sentence."""

    def __init__(self, sdk: Sdk, directory: Path, program: tuple[str, ...] = ()) -> None:
        self.sdk = sdk
        self.directory = directory / "shop"
        self.directory.mkdir()
        self.ports: tuple[int, ...] = ()
        self._endpoints = PrivateEndpoints(directory)
        self._program = program  # that `programs.built` has made

    def make(self, mistake: str) -> str:
        """Make the mistake. Returns the sentence, normalised. Raises NoSentence."""
        self.ports = tuple(free_ports(2))
        text: str = getattr(self, mistake)()
        return normalised(text, self.directory, self.ports)

    # -- endpoints ----------------------------------------------------------------------------------------------------

    def no_broker(self) -> str:
        return self._log_of(**self._tcp())

    def no_socket(self) -> str:
        return self._log_of(**_links(f"ipc://{self.directory}/steps.sock", f"ipc://{self.directory}/results.sock"))

    def elsewhere(self) -> str:
        return self._log_of()

    def left_socket(self) -> str:
        path = self.directory / "left.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        return self._log_of(**_links(f"ipc://{path}", f"ipc://{path}"))

    def not_a_socket(self) -> str:
        path = self.directory / "steps.sock"
        path.touch()
        return self._log_of(**_links(f"ipc://{path}", f"ipc://{path}"))

    def swapped(self) -> str:
        with self._stage() as stage:
            steps, results = stage.broker.steps_endpoint, stage.broker.results_endpoint
            self.ports = _ports(results, steps)
            return self._log_on(stage, **_links(results, steps))

    def http_port(self) -> str:
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _QuietHandler) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            endpoint = f"tcp://127.0.0.1:{server.server_port}"
            self.ports = (server.server_port,)
            try:
                return self._log_of(**_links(endpoint, endpoint))
            finally:
                server.shutdown()
                thread.join()

    def unknown_host(self) -> str:
        return self._log_of(**_links("tcp://broker.invalid:7411", "tcp://broker.invalid:7412"))

    def wrong_scheme(self) -> str:
        return self._end_of(**_links("http://127.0.0.1:7410"))

    def no_scheme(self) -> str:
        return self._end_of(**_links("127.0.0.1:7411"))

    def no_port(self) -> str:
        return self._end_of(**_links("tcp://127.0.0.1"))

    def bad_port(self) -> str:
        return self._end_of(**_links("tcp://127.0.0.1:steps"))

    def far_port(self) -> str:
        return self._end_of(**_links("tcp://127.0.0.1:74110"))

    def bind_address(self) -> str:
        return self._end_of(**_links("tcp://*:7411"))

    def long_path(self) -> str:
        return self._end_of(**_links("ipc:///srv/shop/" + "x" * 104 + ".sock"))

    def ipc_in_java(self) -> str:
        return self._end_of(**_links("ipc://.stepwire/steps.sock"))

    def one_of_two(self) -> str:
        return self._end_of(**_links("tcp://127.0.0.1:7411,tcp://127.0.0.1:7421"))

    # -- settings -----------------------------------------------------------------------------------------------------

    def slots_word(self) -> str:
        return self._end_of(**self._tcp(), STEPWIRE_SLOTS="ten")

    def slots_zero(self) -> str:
        return self._end_of(**self._tcp(), STEPWIRE_SLOTS="0")

    def labels(self) -> str:
        return self._end_of(**self._tcp(), STEPWIRE_LABELS="region")

    def name(self) -> str:
        return self._end_of(**self._tcp(), STEPWIRE_NAME="my worker")

    def version_text(self) -> str:
        return self._end_of(**self._tcp(), STEPWIRE_HANDLER_VERSION="v" * 65)

    # -- handlers -----------------------------------------------------------------------------------------------------

    def no_handlers(self) -> str:
        return self._end_of_program("no_handlers")

    def twice(self) -> str:
        return self._end_of_program("twice")

    def too_late(self) -> str:
        return self._end_of_program("too_late")

    def handler_name(self) -> str:
        return self._end_of_program("handler_name")

    def unknown_handler(self) -> str:
        with Site(self.sdk.transport) as site:
            site.start_broker()
            site.apply(workflow("shop", {"name": "ship", "handler_class": "conform.ecko"}))
            site.start_other_worker("shop", self.sdk.conform)
            task_id = site.client().submit("shop", {}).task_id

            def why() -> str | None:
                found: dict[str, Any] = site.client().why(task_id)
                message = str(found.get("message", ""))
                return message if "did you mean" in message else None

            return eventually(why, "the reason why the step waits")

    def blocking(self) -> str:
        with self._stage(self._program, MISTAKE="blocking") as stage:
            stage.open_session()
            stage.steps(stage.step("ship_order", {}, step_name="ship"))
            return self._only_log(stage.output, lambda: stage.wait(0.1))

    # -- outputs ------------------------------------------------------------------------------------------------------

    def no_json(self) -> str:
        return self._bad_output("object")

    def nan(self) -> str:
        return self._bad_output("nan")

    def big_id(self) -> str:
        return self._bad_output("bigint")

    def nul(self) -> str:
        return self._bad_output("nul")

    def surrogate(self) -> str:
        return self._bad_output("surrogate")

    def _bad_output(self, kind: str) -> str:
        with self._stage() as stage:
            stage.open_session()
            result = stage.run("conform.bad_output", {"kind": kind})
            error = result.get("error") or {}
            if error.get("code") != "bad_output":
                raise NoSentence(f"the worker reports {result!r}")
            check_traces(stage.output())
            return str(error["message"])

    # -- versions and keys --------------------------------------------------------------------------------------------

    def protocol_version(self) -> str:
        with self._stage() as stage:
            stage.open_brokers()
            stage.broker.welcomes = False
            stage.start()
            hello = stage.expect("hello", within_s=ENOUGH_S)
            stage.send(
                stage.broker.message("reset", next=hello["next"].get("b1", 1), code="version"),
                to=hello["worker"],
            )
            return self._only_log(stage.output, lambda: stage.wait(0.1))

    def no_keys(self) -> str:
        return self._log_with_curve(lambda keys: {})

    def wrong_server_key(self) -> str:
        other = zmq.curve_keypair()[0].decode()
        return self._log_with_curve(lambda keys: keys.environ() | {"STEPWIRE_CURVE_SERVER_KEY": other})

    def refused_key(self) -> str:
        return self._log_with_curve(lambda keys: keys.environ())  # the played broker admits no key

    def unauthorized(self) -> str:
        keys = ServerKeys()
        with self._stage(keys=keys) as stage:
            assert stage.gate is not None
            stage.gate.allowed.add(keys.client_public.decode())
            stage.open_brokers()
            stage.start(**keys.environ())
            stage.until_session(within_s=ENOUGH_S)
            beat = stage.expect("heartbeat")
            stage.broker.welcomes = False
            stage.send(stage.broker.message("reset", next=beat["next"]["b1"], code="unauthorized"), to=beat["worker"])
            return self._only_log(stage.output, lambda: stage.wait(0.1))

    def missing_key(self) -> str:
        environ = ServerKeys().environ()
        del environ["STEPWIRE_CURVE_SECRET_KEY"]
        return self._end_of(**self._tcp(), **environ)

    def short_key(self) -> str:
        environ = ServerKeys().environ()
        environ["STEPWIRE_CURVE_PUBLIC_KEY"] = environ["STEPWIRE_CURVE_PUBLIC_KEY"][:39]
        return self._end_of(**self._tcp(), **environ)

    def two_pairs(self) -> str:
        environ = ServerKeys().environ()
        environ["STEPWIRE_CURVE_PUBLIC_KEY"] = environ["STEPWIRE_CURVE_SERVER_KEY"]
        return self._end_of(**self._tcp(), **environ)

    def open_file(self) -> str:
        path = self.directory / "worker.keys"
        path.write_text("".join(f"{name}='{value}'\n" for name, value in ServerKeys().environ().items()))
        path.chmod(0o644)
        return self._end_of(**self._tcp(), STEPWIRE_CURVE_FILE=str(path))

    def no_file(self) -> str:
        return self._end_of(**self._tcp(), STEPWIRE_CURVE_FILE=str(self.directory / "absent.keys"))

    # -- toolchains ---------------------------------------------------------------------------------------------------

    def old_toolchain(self) -> str:
        return old_toolchains.refusal(self.sdk, self.directory)

    # -- running ------------------------------------------------------------------------------------------------------

    def _tcp(self) -> dict[str, str]:
        return _links(*(f"tcp://127.0.0.1:{port}" for port in self.ports))

    def _end_of(self, **environ: str) -> str:
        """The sentence with which the conformance worker ends."""
        code, output = self._run(self.sdk.conform, environ)
        lines = output.strip().splitlines()
        if code == 0 or len(lines) != 1 or not lines[0].startswith(PREFIX):
            raise NoSentence(f"exit code {code}, and not one line that begins with {PREFIX!r}:\n{output}")
        return lines[0].removeprefix(PREFIX)

    def _end_of_program(self, mistake: str) -> str:
        """The sentence with which the small program ends. Go only logs `too_late`, because `Handle` returns nothing."""
        with self._started(self._program, self._tcp() | {"MISTAKE": mistake}) as (process, output):
            until_s = time.monotonic() + ENOUGH_S
            while time.monotonic() < until_s:
                ended = process.poll() is not None
                if ended or logged(output()) or "ConfigurationError" in output():
                    break
                time.sleep(0.05)
            time.sleep(MORE_S)
            text = output()
            check_traces(text)
            lines = logged(text)
            return lines[0] if len(lines) == 1 else of_program(self.sdk.name, text)

    def _log_of(self, **environ: str) -> str:
        """The only warning in the log of the conformance worker, which runs on."""
        with self._started(self.sdk.conform, environ) as (process, output):
            text = self._only_log(output, lambda: time.sleep(0.05))
            if process.poll() is not None:
                raise NoSentence(f"the worker has ended:\n{output()}")
            return text

    def _only_log(self, output: Callable[[], str], pause: Callable[[], None]) -> str:
        until_s = time.monotonic() + ENOUGH_S
        while not logged(output()):
            if time.monotonic() > until_s:
                raise NoSentence(f"no warning within {ENOUGH_S:g} s:\n{output()}")
            pause()
        time.sleep(MORE_S)
        check_traces(output())
        lines = logged(output())
        if len(lines) > 1:
            raise NoSentence("several warnings:\n" + "\n".join(lines))
        return lines[0]

    def _log_on(self, stage: Stage, **settings: str) -> str:
        stage.open_brokers()
        stage.start(**settings)
        return self._only_log(stage.output, lambda: stage.wait(0.1))

    def _log_with_curve(self, settings: Callable[[ServerKeys], Mapping[str, str]]) -> str:
        keys = ServerKeys()
        with self._stage(keys=keys) as stage:
            self.ports = _ports(stage.broker.steps_endpoint, stage.broker.results_endpoint)
            return self._log_on(stage, **settings(keys))

    @contextlib.contextmanager
    def _stage(
        self, command: Sequence[str] | None = None, *, keys: ServerKeys | None = None, **environ: str
    ) -> Iterator[Stage]:
        """A played broker on tcp, so that the endpoints have the same form in every language."""
        setting = Setting(
            command or self.sdk.conform, _environ(environ), self._endpoints, secrets.token_hex(8), patience=2.0
        )
        stage = Stage(setting, "tcp", keys=keys)
        try:
            yield stage
        finally:
            stage.close()

    def _run(self, command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, str]:
        with self._started(command, environ) as (process, output):
            try:
                process.wait(ENOUGH_S)
            except subprocess.TimeoutExpired:
                raise NoSentence(f"the program runs on:\n{output()}") from None
            return process.returncode, output()

    @contextlib.contextmanager
    def _started(
        self, command: Sequence[str], environ: Mapping[str, str]
    ) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], str]]]:
        with tempfile.NamedTemporaryFile(dir=self.directory.parent) as log:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                env=_environ(environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield process, lambda: Path(log.name).read_text(errors="replace")
            finally:
                process.kill()
                process.wait()


class _QuietHandler(http.server.BaseHTTPRequestHandler):
    """Answers as any HTTP server does, without a line of its own for each request."""

    def log_message(self, format: str, *args: object) -> None:
        return


def _environ(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program, without the caller's own configuration."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STEPWIRE_")}
    return inherited | {"NO_COLOR": "1", "PYTHON": sys.executable} | dict(changes)


def _links(steps: str, results: str = "tcp://127.0.0.1:7412") -> dict[str, str]:
    return {"STEPWIRE_STEPS": steps, "STEPWIRE_RESULTS": results}


def _ports(*endpoints: str) -> tuple[int, ...]:
    return tuple(int(endpoint.rpartition(":")[2]) for endpoint in endpoints)
