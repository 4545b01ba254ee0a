"""CPU-bound handlers in processes of their own: one thread here looks after one child there.

The child cannot outlive the worker (the kernel kills it with the thread that started it) and is killed when its step's
time is over, so a timed-out step really has ended. Steps and results cross a pipe as JSON.
"""

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

import msgspec
from stepwire_protocol.messages import Result, StepRequest

from .actions import Lease, Run
from .context import Context
from .handler import make_handler, sdk_failure, stopped
from .identity import now_ms
from .runners import Call, run_plain

_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.05  # how soon a cancel is seen; results and deaths are seen at once

_encode: Final = msgspec.json.Encoder().encode
_RESULT: Final = b"r"
_PROGRESS: Final = b"p"


class _Order(msgspec.Struct, frozen=True):
    """Run this, there."""

    module: str
    function: str
    name: str
    version: str | None
    step: StepRequest
    timeout_in_ms: float | None


class _Progress(msgspec.Struct, frozen=True):
    done: float
    total: float | None
    note: str | None


_decode_order: Final = msgspec.json.Decoder(_Order).decode
_decode_result: Final = msgspec.json.Decoder(Result).decode
_decode_progress: Final = msgspec.json.Decoder(_Progress).decode


class Lane:
    """A child process and its pipe, owned by one thread. Started when first needed, again after it was killed."""

    def __init__(self) -> None:
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None

    def perform(self, call: Call) -> Result | None:
        step, handler, context = call.run.step, call.handler, call.context
        pipe = self._connected()
        started_ms = now_ms()
        left_ms = call.run.timeout_at_ms - started_ms
        order = _Order(
            handler.function.__module__,
            handler.function.__qualname__,
            handler.name,
            handler.version,
            step,
            left_ms if left_ms != float("inf") else None,
        )
        try:
            pipe.send_bytes(_encode(order))
            while True:
                left_s = (call.run.timeout_at_ms - now_ms()) / 1000
                if context.cancel_reason is None and left_s > 0:
                    if not pipe.poll(min(_POLL_S, left_s)):
                        continue
                elif not pipe.poll(0):
                    self.kill()
                    reason = context.cancel_reason or "timeout"
                    if reason == "shutdown" and step.delivery_mode == "at_least_once":
                        return None
                    return stopped(step, reason, now_ms() - started_ms, handler.version)
                frame = pipe.recv_bytes()
                if frame[:1] == _RESULT:
                    return _decode_result(frame[1:])
                progress = _decode_progress(frame[1:])
                context.progress(progress.done, progress.total, progress.note)
        except (EOFError, OSError):
            exit_code = self.kill()
            text = f"the process of {handler.name!r} ended with exit code {exit_code} while it ran the step"
            return sdk_failure(step, "process_died", text, retryable=True, took_ms=now_ms() - started_ms)

    def kill(self) -> int | None:
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
            self._child = spawn.Process(target=_child, args=(theirs, os.getpid()), daemon=True, name="stepwire-handler")
            self._child.start()
            theirs.close()
        return self._pipe


def children_die_with_us() -> bool:
    """Can this system promise that no handler process outlives the worker?"""
    return sys.platform == "linux"


def _child(pipe: Connection, parent: int) -> None:
    """The child's whole life: orders in, results out, until the pipe closes."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)  # the parent died before it could be tied to us
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker decides when we stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def tell(_item: object, done: float, total: float | None, note: str | None) -> None:
        pipe.send_bytes(_PROGRESS + _encode(_Progress(done, total, note)))

    while True:
        try:
            order = _decode_order(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        result = _perform(order, tell)
        try:
            pipe.send_bytes(_RESULT + _encode(result))
        except OSError:
            return


def _perform(order: _Order, tell: Any) -> Result:
    try:
        function: Any = importlib.import_module(_module_here(order.module))
        for name in order.function.split("."):
            function = getattr(function, name)
        handler = make_handler(function, order.name, process=True, version=order.version)
    except Exception as error:
        text = f"{order.module}.{order.function} cannot be loaded in a handler process: {error}"
        return sdk_failure(order.step, "handler_not_loadable", text)
    at_ms = now_ms()
    timeout_at_ms = float("inf") if order.timeout_in_ms is None else at_ms + order.timeout_in_ms
    context = Context(order.step, started_ms=at_ms, timeout_at_ms=timeout_at_ms, clock=now_ms, report=tell)
    item = (order.step.step_id, order.step.delivery)
    return run_plain(Call(Run(item, order.step, 0, at_ms, timeout_at_ms, Lease()), handler, context))


def _module_here(module: str) -> str:
    """The worker's main program has another name in a spawned child."""
    return "__mp_main__" if module == "__main__" else module
