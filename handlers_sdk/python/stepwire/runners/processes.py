"""Child processes for CPU-bound handlers: each thread of the runner has one child process.

A child cannot outlive the worker: the kernel kills the child when the thread that started it ends. A child is killed
when its step times out, so a timed-out step has certainly ended. Steps and results are sent over a pipe as JSON.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

import msgspec
from stepwire_protocol.messages import Item, Result, StepRequest

from stepwire import redaction
from stepwire.actions import Lease, Run
from stepwire.context import Context, ProgressReport
from stepwire.handler import make_handler, sdk_failure, stopped
from stepwire.identity import now_ms

from . import child_logs, run_log
from .calls import GIVE_BACK, HandlerCall, call_plain

_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.05  # the longest delay of a cancel; a result or the end of the child is received at once

_encode: Final = msgspec.json.Encoder().encode
_RESULT: Final = b"r"
_PROGRESS: Final = b"p"
_LOG: Final = b"l"


class _StartRun(msgspec.Struct, frozen=True):
    """The message that makes the child run one step."""

    module: str
    function: str
    name: str
    version: str | None
    step: StepRequest
    timeout_in_ms: float | None
    is_sealed: bool = False
    secrets: dict[str, str] = {}  # the values that the step holds, by name, for the child to remove from its texts


class _Progress(msgspec.Struct, frozen=True):
    done: float
    total: float | None
    note: str | None


_decode_start: Final = msgspec.json.Decoder(_StartRun).decode
_decode_result: Final = msgspec.json.Decoder(Result).decode
_decode_progress: Final = msgspec.json.Decoder(_Progress).decode


class ChildProcess:
    """A child process and its pipe, owned by one thread. The first call, and the next call after a kill, start a
    child."""

    def __init__(self) -> None:
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None

    def perform(self, call: HandlerCall) -> Result | None:
        step, handler, context = call.step, call.handler, call.context
        pipe = self._connected()
        started_ms = now_ms()
        left_ms = call.run.timeout_at_ms - started_ms
        start = _StartRun(
            handler.function.__module__,
            handler.function.__qualname__,
            handler.name,
            handler.version,
            step,
            left_ms if left_ms != float("inf") else None,
            call.is_sealed,
            {} if call.opened is None else call.opened.values,
        )
        try:
            pipe.send_bytes(_encode(start))
            while True:
                left_s = (call.run.timeout_at_ms - now_ms()) / 1000
                if context.cancel_reason is None and left_s > 0:
                    if not pipe.poll(min(_POLL_S, left_s)):
                        continue
                elif not pipe.poll(0):
                    self.kill()
                    reason = context.cancel_reason or "timeout"
                    if reason == "shutdown" and step.delivery_mode == "at_least_once":
                        return GIVE_BACK
                    return stopped(step, reason, now_ms() - started_ms, handler.version)
                frame = pipe.recv_bytes()
                if frame[:1] == _RESULT:
                    return _decode_result(frame[1:])
                if frame[:1] == _LOG:
                    child_logs.receive(frame[1:])
                    continue
                progress = _decode_progress(frame[1:])
                context.progress(progress.done, progress.total, progress.note)
        except (EOFError, OSError):
            exit_code = self.kill()
            text = f"the process of {handler.name!r} ended with exit code {exit_code} while it ran the step"
            result = sdk_failure(step, "process_died", text, retryable=True, took_ms=now_ms() - started_ms)
            run_log.not_reported(step, result)
            return result

    def kill(self) -> int | None:
        """Kill the child. Returns its exit code; None if there was no child."""
        child, self._child = self._child, None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if child is None:
            return None
        child.kill()
        child.join()
        exit_code = child.exitcode
        child.close()
        return exit_code

    def _connected(self) -> Connection:
        if self._pipe is None or self._child is None or not self._child.is_alive():
            self.kill()
            spawn = multiprocessing.get_context("spawn")
            self._pipe, theirs = spawn.Pipe()
            self._child = spawn.Process(
                target=_child, args=(theirs, os.getpid(), child_logs.levels()), daemon=True, name="stepwire-handler"
            )
            self._child.start()
            theirs.close()
        return self._pipe


class ChildProcesses:
    """One child process for each thread that performs a call."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: list[ChildProcess] = []

    def perform(self, call: HandlerCall) -> Result | None:
        child: ChildProcess | None = getattr(self._own, "child", None)
        if child is None:
            child = self._own.child = ChildProcess()
            self._all.append(child)
        return child.perform(call)

    def kill(self) -> None:
        """Kill all children, because the program may continue without the worker."""
        for child in self._all:
            child.kill()


def children_die_with_us() -> bool:
    """True if this system guarantees that no handler process outlives the worker."""
    return sys.platform == "linux"


class _SharedPipe:
    """The child's end of the pipe. Threads of the handler may log and report progress."""

    def __init__(self, pipe: Connection) -> None:
        self.receive = pipe.recv_bytes
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, kind: bytes, body: bytes) -> None:
        with self._lock:
            self._pipe.send_bytes(kind + body)


def _child(ours: Connection, parent: int, levels: dict[str, int]) -> None:
    """The main function of a child: read steps and write results until the pipe closes."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # the parent ended before prctl was called
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes of a terminal; the worker decides when its children stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    pipe = _SharedPipe(ours)
    child_logs.send_to_worker(levels, lambda body: pipe.send(_LOG, body))

    def report(item: Item, done: float, total: float | None, note: str | None) -> None:
        pipe.send(_PROGRESS, _encode(_Progress(done, total, note)))

    while True:
        try:
            start = _decode_start(pipe.receive())
        except (EOFError, OSError):
            return
        result = _perform(start, report)
        try:
            pipe.send(_RESULT, _encode(result))
        except OSError:
            return


def _perform(start: _StartRun, report: ProgressReport) -> Result:
    redaction.remember(start.secrets)
    try:
        function: Any = importlib.import_module(_module_here(start.module))
        for name in start.function.split("."):
            function = getattr(function, name)
        handler = make_handler(function, start.name, process=True, version=start.version)
    except Exception as error:
        text = f"{start.module}.{start.function} cannot be loaded in a handler process: {error}"
        result = sdk_failure(start.step, "handler_not_loadable", text)
        run_log.not_reported(start.step, result)
        return result
    at_ms = now_ms()
    timeout_at_ms = float("inf") if start.timeout_in_ms is None else at_ms + start.timeout_in_ms
    context = Context(start.step, started_ms=at_ms, timeout_at_ms=timeout_at_ms, clock=now_ms, report=report)
    item = (start.step.step_id, start.step.delivery)
    call = HandlerCall(Run(item, start.step, 0, Lease()), handler, context)
    call.is_sealed = start.is_sealed
    return call_plain(call)


def _module_here(module: str) -> str:
    """The name of this module in a spawned child. The worker's main program has another name there."""
    return "__mp_main__" if module == "__main__" else module
