"""The context of a run: the first argument of every handler."""

import logging
import threading
from typing import Any, Final, Protocol

import msgspec
from stepwire_protocol.messages import Item, StepRequest

from . import logs
from .errors import ConfigurationError
from .texts import shortened

logger: Final = logging.getLogger(logs.HANDLER)

NOTE_CHARS_MAX: Final = 200
_decode: Final = msgspec.json.Decoder().decode
_making: Final = threading.Lock()


class Clock(Protocol):
    """Returns the time in milliseconds."""

    def __call__(self) -> float: ...


class ProgressReport(Protocol):
    """Accepts the progress of a run."""

    def __call__(self, item: Item, done: float, total: float | None, note: str | None) -> None: ...


class Signal:
    """A flag that the SDK sets once, and a handler reads or waits for. Its event is created when a handler first
    waits."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    __bool__ = is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set, at most `timeout` seconds. Async handlers need not wait: they are cancelled."""
        with _making:
            if self._event is None:
                self._event = threading.Event()
                if self._is_set:
                    self._event.set()
            event = self._event
        return event.wait(timeout)

    def set(self) -> None:
        with _making:
            self._is_set = True
            if self._event is not None:
                self._event.set()


class Context:
    """One delivery of a step, for its handler.

    `idempotency_key` is the same for every attempt and delivery of the step. Pass it to every service that must not
    act twice. `delivery` only increases: a store that keeps the highest value can refuse writes of an earlier run.
    """

    # Most handlers use few of these, so a step should not pay for them: they are set when they are first needed.
    _config: Any = None
    _results: Any = None
    _is_sealed: bool = False
    _log: "logging.LoggerAdapter[logging.Logger] | None" = None
    _cancelled: Signal | None = None
    _lease_lost: Signal | None = None
    cancel_reason: str | None = None  # timeout, task_cancelled, superseded, shutdown, …

    def __init__(
        self, step: StepRequest, *, started_ms: float, timeout_at_ms: float, clock: Clock, report: ProgressReport
    ) -> None:
        self._step = step
        self._started_ms = started_ms  # set again when the run begins, because it may wait for a slot
        self._timeout_at_ms = timeout_at_ms
        self._clock = clock
        self._report = report

    # -- the step -----------------------------------------------------------------------------------------------------

    @property
    def task_id(self) -> int:
        return self._step.task_id

    @property
    def step_id(self) -> int:
        return self._step.step_id

    @property
    def step_name(self) -> str:
        return self._step.step_name

    @property
    def handler_class(self) -> str:
        return self._step.handler_class

    @property
    def attempt(self) -> int:
        """The number of failed attempts before this one."""
        return self._step.metadata.attempt

    @property
    def retry_limit(self) -> int:
        return self._step.metadata.retry_limit

    @property
    def delivery(self) -> int:
        return self._step.delivery

    @property
    def delivery_mode(self) -> str:
        return self._step.delivery_mode

    @property
    def idempotency_key(self) -> str:
        return self._step.metadata.idempotency_key

    @property
    def traceparent(self) -> str | None:
        return self._step.metadata.traceparent

    @property
    def tracestate(self) -> str | None:
        """The vendor part of the trace context. Pass it on together with `traceparent`."""
        return self._step.metadata.tracestate

    @property
    def is_shadow(self) -> bool:
        """True in a shadow run. The result is only compared, so the run must have no effects."""
        return self._step.metadata.shadow

    # -- input --------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> Any:
        """The step's `handler_config`."""
        if self._config is None:
            self._config = _decode(self._step.handler_config)
        return self._config

    @property
    def results(self) -> Any:
        """The outputs of the steps that this step depends on, by step name."""
        if self._results is None:
            self._results = _decode(self._step.previous_results)
        return self._results

    @property
    def raw_input(self) -> bytes:
        """The input as JSON: the step's `input` if its workflow defines one, otherwise the whole task context."""
        step = self._step
        return bytes(step.task_context if step.input is msgspec.UNSET else step.input)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def remaining_ms(self) -> float:
        """Milliseconds until the timeout; infinite without a timeout."""
        return max(0.0, self._timeout_at_ms - self._clock())

    @property
    def deadline_ms(self) -> float:
        """The time of the timeout on the worker's own clock (`stepwire.identity.now_ms`)."""
        return self._timeout_at_ms

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the start of the run."""
        return max(0.0, self._clock() - self._started_ms)

    # -- the end of the run --------------------------------------------------------------------------------------------

    @property
    def cancelled(self) -> Signal:
        """Set when the handler should stop; `cancel_reason` says why."""
        signal = self._cancelled
        if signal is None:
            with _making:
                signal = self._cancelled = self._cancelled or Signal()
        return signal

    @property
    def lease_lost(self) -> Signal:
        """Set when another worker may run this step, too."""
        signal = self._lease_lost
        if signal is None:
            with _making:
                signal = self._lease_lost = self._lease_lost or Signal()
        return signal

    # -- reports ---------------------------------------------------------------------------------------------------

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Report the progress of this run: `done` of `total`, and a short note for people.

        Calls are cheap: only the latest report of a run is sent, at most five times a second. A note with more than 200
        characters is cut after 199, and ends with `…`; a note of a sealed step is not sent. Raises ConfigurationError
        for anything but finite numbers up to 2^53.
        """
        for number in (done, total):
            if number is not None and not (isinstance(number, int | float) and abs(number) <= 2**53):
                raise ConfigurationError(f"progress({done!r}, {total!r}): both must be finite numbers up to 2^53")
        self._report(
            (self._step.step_id, self._step.delivery),
            done,
            total,
            None if note is None or self._is_sealed else shortened(note, NOTE_CHARS_MAX),
        )

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose records carry the step's ids. Without logging configuration, it writes to stderr from INFO
        on."""
        if self._log is None:
            self._log = logs.StepLogger(logger, logs.step_ids(self._step))
        return self._log

    logger = log

    def _stop(self, reason: str) -> None:
        """Set the flags for this reason. A lost lease does not cancel the run, which may still be the only one."""
        if reason == "lease_lost":
            self.lease_lost.set()
            return
        if self.cancel_reason is None:
            self.cancel_reason = reason
        self.cancelled.set()
