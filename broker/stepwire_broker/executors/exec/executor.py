"""The executor `exec`: any executable runs a step, with the request on standard input, the output on standard output.

`exit_codes.py` turns exit codes into results. `program.py` starts a program, records it, and makes sure that it ends.
"""

import asyncio
import os
import secrets
import time
from pathlib import Path
from typing import Final

import structlog
from msgspec import structs
from stepwire import secret_values
from stepwire.actions import RunEnd
from stepwire.secret_files import SecretUnavailable
from stepwire_protocol import codec, limits
from stepwire_protocol.messages import StepRequest

from stepwire_broker.core.answers.error_texts import described
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.exec_runs.process_groups import MARK
from stepwire_broker.exec_runs.records import Record, Records
from stepwire_broker.executors.contract import (
    BaseExecutor,
    ExecutionFailed,
    ExecutionResult,
    NoCapacity,
    NoExecutor,
    StepReady,
)

from . import program_secrets
from .commands import Commands, ProgramCommand
from .exit_codes import outcome_of, stderr_of
from .program import NotStarted, Program, ProgramEnded, ProgramStart
from .sweeping import Sweeper

KEY: Final = "exec"
RESULT_OVERHEAD_BYTES: Final = 1_500  # of a results message, in addition to the output
EARLY_CANCELS_MAX: Final = 1_000
LOGGED_CHARACTERS_MAX: Final = 200

log = structlog.get_logger("stepwire.exec")


class Exec(BaseExecutor):
    """Raises BadCommand when a command cannot be run."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(KEY, settings.executors.exec.slots)
        self._commands = Commands(settings.executors.exec, os.environ)
        self.handlers = self._commands.handlers
        self.shadow_safe = self._commands.shadow_safe
        self._secrets_dir = settings.executors.exec.secrets_dir
        self._runs_dir = settings.executors.exec.runs_dir
        room = settings.bus.max_message_bytes - RESULT_OVERHEAD_BYTES
        self._stdout_bytes_max = max(0, min(settings.limits.payload_bytes, room))
        self._programs: dict[tuple[int, int], Program] = {}
        self._early_cancels: dict[tuple[int, int], RunEnd] = {}
        self._records: Records | None = None
        self._sweeper = Sweeper()

    async def start(self) -> None:
        """Open the records of runs. Raises RunsRefused. Programs of an earlier broker process have ended before."""
        self._records = Records(self._runs_dir)

    async def stop(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None

    async def run(self, step: StepReady) -> ExecutionResult:
        run = (step.step_id, step.delivery)
        try:
            command = self._commands.find(step.handler_class)
            if command is None:
                raise NoExecutor(f"executors.exec.commands has no program for {step.handler_class}")
            request = await step.request()
            values: dict[str, str] = {}
            if secret_values.may_need(request):
                request, values = await asyncio.to_thread(program_secrets.resolved, request, self._secrets_dir)
            mark = secrets.token_hex(8)
            order = ProgramStart(
                argv=command.argv,
                cwd=command.cwd,
                environ=_environ(command, step, request, mark),
                request=codec.encode(request),
                stdout_bytes_max=self._stdout_bytes_max,
                limits=command.limits,
            )
            program = Program(order, lambda pid: self._register(pid, mark, command, step), self._sweeper.sweep)
            if run in self._early_cancels:
                raise NoCapacity(f"the run was cancelled before it began: {self._early_cancels[run]}")
            self._programs[run] = program
            ended = await program.run()
        except SecretUnavailable as error:
            raise ExecutionFailed(str(error), code="secret_unavailable", category=error.category) from None
        except NotStarted as error:
            raise ExecutionFailed(str(error), code="not_started", category="unavailable") from None
        finally:
            self._programs.pop(run, None)
            self._early_cancels.pop(run, None)
        return self._outcome(step, program_secrets.without_values(ended, values))

    def cancel(self, step: StepReady, reason: RunEnd) -> None:
        run = (step.step_id, step.delivery)
        program = self._programs.get(run)
        if program is not None:
            program.end(reason)
            log.info("run_cancelled", step_id=step.step_id, delivery=step.delivery, reason=reason)
        elif len(self._early_cancels) < EARLY_CANCELS_MAX:
            self._early_cancels[run] = reason  # the run is about to begin

    def _outcome(self, step: StepReady, ended: ProgramEnded) -> ExecutionResult:
        at_most_once = step.delivery_mode == "at_most_once"
        if ended.cancelled_for == "shutdown" and not at_most_once:
            raise NoCapacity("the broker stops; the step runs again after that")
        if ended.stderr:
            log.debug("run_stderr", step_id=step.step_id, stderr=ended.stderr.decode("utf-8", "replace"))
        result = outcome_of(ended, at_most_once=at_most_once, stdout_bytes_max=self._stdout_bytes_max)
        if result.error is not None:
            text = described(result.code, result.error, LOGGED_CHARACTERS_MAX)
            log.warning("program_failed", task_id=step.task_id, step_id=step.step_id, step=step.path, error=text)
        # An empty text replaces the text of an earlier run. A first run has nothing to replace.
        return structs.replace(result, stderr=stderr_of(ended)) if ended.stderr or step.delivery > 1 else result

    def _register(self, pid: int, mark: str, command: ProgramCommand, step: StepReady) -> tuple[Record, Path]:
        if self._records is None:
            raise OSError("the broker stops")
        record = self._records.record(
            pid,
            mark=mark,
            handler_class=step.handler_class,
            ids=(step.task_id, step.step_id, step.delivery),
            program=command.argv[0],
        )
        if not record.started:
            raise OSError("the process is gone")
        return record, self._records.add(record)


def _environ(command: ProgramCommand, step: StepReady, request: StepRequest, mark: str) -> dict[str, str]:
    """The inherited variables, those of the command, and those that describe the run."""
    metadata = request.metadata
    timeout_ms = step.timeout_ms or limits.TIMEOUT_DEFAULT_MS
    if metadata.deadline_ms is not None:
        timeout_ms = min(timeout_ms, metadata.deadline_ms)
    environ = {
        **command.environ,
        "STEPWIRE_TASK_ID": str(step.task_id),
        "STEPWIRE_STEP_ID": str(step.step_id),
        "STEPWIRE_STEP_NAME": request.step_name,
        "STEPWIRE_HANDLER_CLASS": step.handler_class,
        "STEPWIRE_DELIVERY": str(step.delivery),
        "STEPWIRE_ATTEMPT": str(metadata.attempt),
        "STEPWIRE_RETRY_LIMIT": str(metadata.retry_limit),
        "STEPWIRE_IDEMPOTENCY_KEY": step.idempotency_key,
        "STEPWIRE_TIMEOUT_MS": str(timeout_ms),
        "STEPWIRE_DEADLINE_MS": str(time.time_ns() // 1_000_000 + timeout_ms),
        MARK: mark,
    }
    if metadata.shadow:
        environ["STEPWIRE_SHADOW"] = "1"
    if metadata.traceparent:
        environ["TRACEPARENT"] = metadata.traceparent
    return environ
