"""The worker's events as log lines: one sentence each, for the logger `stepwire.worker`.

The record's attributes `event`, `facts` and `worker` hold the same for programs.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from stepwire import logs
from stepwire.actions import Link, LogLevel
from stepwire.texts import clean

LISTED_MAX: Final = 5  # handlers that a line names

log: Final = logging.getLogger(logs.WORKER)

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_DROPPED: Final = {
    "lease_over": "lost broker {broker}: it has not answered for a whole lease",
    "unknown_session": "broker {broker} has ended the session: it no longer knows this worker",
    "expired": "broker {broker} has ended the session: it did not receive heartbeats of this worker in time",
    "version": "broker {broker} refuses this worker: they have no protocol version in common; "
    "use a broker and an SDK of the same release",
    "unauthorized": "broker {broker} refuses this worker: unauthorized",
    "shutdown": "broker {broker} shuts down",
    "deployment_replaced": "the session with broker {broker} has ended, because its database is another one",
}

Facts = dict[str, Any]


class WorkerEvents:
    """Logs the events of one worker. The worker inside a broker's own process is quiet about its connection."""

    def __init__(
        self,
        worker_id: str,
        link_of: Callable[[str], Link | None],
        *,
        is_inside_broker: bool,
        public_key: str | None = None,
    ) -> None:
        """`public_key`: the CURVE key that the worker connects with, for its lines about refusals."""
        self.public_key: Final = public_key
        self._extra = {"worker": worker_id}
        self._link_of = link_of
        self._is_inside_broker = is_inside_broker
        self._epochs: dict[str, str] = {}  # of each broker's last session

    def log(self, level: LogLevel, event: str, **facts: Any) -> None:
        """Log one event of the table in the broker's telemetry.py."""
        number = _LEVELS[level]
        if self._is_inside_broker and number < logging.WARNING:
            number = logging.DEBUG
        sentence = self._opened(facts) if event == "session_opened" else _SENTENCES[event](facts)
        if "unauthorized" in (facts.get("why"), facts.get("code")):
            sentence += f"; {key_of(self.public_key)}"
        if log.isEnabledFor(number):
            log.log(number, "%s", clean(sentence), extra={**self._extra, "event": event, "facts": facts})

    def log_failure(self) -> None:
        """Log the exception that is being handled, and that ends the worker."""
        log.error(
            "the worker ends, because its socket thread has failed",
            exc_info=True,
            extra={**self._extra, "event": "worker_failed", "facts": {}},
        )

    def _opened(self, facts: Facts) -> str:
        broker = facts["broker"]
        link = self._link_of(broker)
        epoch = facts["session"].partition(".")[0]
        before, self._epochs[broker] = self._epochs.get(broker), epoch
        at = f" at {link.steps}" if link is not None else ""
        again = "" if before is None else " again" if before == epoch else " again, after its restart"
        return f"connected to broker {broker}{at}{again}"


def key_of(public_key: str | None) -> str:
    """How a refused worker names its key, and what to do."""
    key = "this worker has no key" if public_key is None else f"this worker's public key is {public_key}"
    return f"{key}; on the broker's host see `stepwire keys list` and `stepwire keys allow`"


def _started(facts: Facts) -> str:
    names = facts["handlers"]
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    slots = "1 slot" if facts["slots"] == 1 else f"{facts['slots']} slots"
    return f"started as {facts['name']}, process {facts['pid']}, {slots}; offers {', '.join(names[:LISTED_MAX])}{more}"


def _dropped(facts: Facts) -> str:
    text = _DROPPED.get(facts["why"], "the session with broker {broker} has ended ({why})").format_map(facts)
    steps = facts["not_started"]
    if steps:
        text += f"; {_steps(steps)} that had not started will run elsewhere"
    return text


def _drains(facts: Facts) -> str:
    running = facts["running"]
    return f"stopping: {f'{_steps(running)} may still finish' if running else 'no step is running'}"


def _ended(facts: Facts) -> str:
    unacknowledged = facts["unacknowledged"]
    if not unacknowledged:
        return "the worker has ended"
    return f"the worker has ended, and no broker has acknowledged {_steps(unacknowledged)}: they may run again"


def _refused_steps(facts: Facts) -> str:
    return f"returned {_steps(facts['steps'])} to broker {facts['broker']}: {facts['code']}"


def _refused_message(facts: Facts) -> str:
    return (
        f"broker {facts['broker']} refused a message of this worker ({facts['refused']}):"
        f" {facts['code']}: {facts['message']}"
    )


def _rebuilt(facts: Facts) -> str:
    return f"connecting to {facts['link'].steps} again, because it is silent"


def _replaced(facts: Facts) -> str:
    lost = facts["results_discarded"]
    return (
        f"broker {facts['broker']} has another database ({facts['deployment']}):"
        f" {'1 message' if lost == 1 else f'{lost} messages'} with results for the earlier one discarded"
    )


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


_SENTENCES: Final[dict[str, Callable[[Facts], str]]] = {
    "worker_started": _started,
    "worker_drains": _drains,
    "worker_ended": _ended,
    "session_dropped": _dropped,
    "deployment_replaced": _replaced,
    "steps_refused": _refused_steps,
    "message_unreadable": lambda facts: f"a message of a broker cannot be read: {facts['code']}: {facts['why']}",
    "message_refused": _refused_message,
    "link_rebuilt": _rebuilt,
    "link_moved": lambda facts: f"connecting to broker {facts['broker']} at its new address {facts['link'].steps}",
    "link_removed": lambda facts: f"disconnected from broker {facts['broker']}, because no list names it",
    "server_key_changed": lambda facts: f"connecting to broker {facts['broker']} again, because it has a new CURVE key",
    "broker_ignored": lambda facts: (
        f"broker {facts['broker']} is not connected, because it requires CURVE keys: set STEPWIRE_CURVE_FILE"
    ),
    "connect_failed": lambda facts: f"cannot connect to {facts['endpoint']}: {facts['error']}",
    "no_broker": lambda facts: f"no broker for {facts['seconds']} s: {facts['endpoint']}: {facts['reason']}",
}
