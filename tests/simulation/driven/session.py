"""A session behind a driver, in the form in which a simulated worker and the checks use Python's session."""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from conformance.driver_process import Failed
from stepwire.actions import NEVER, Action, CancelRun, Connect, Disconnect, Lease, Link, Log, Quit, Rebuild, Run, Send
from stepwire.session import Config
from stepwire.session.config import Offers
from stepwire_protocol import codec
from stepwire_protocol.messages import ErrorDetail, HeldItem, HeldState, Item, Result, StepRequest, Steps

from .drivers import Driver
from .lease import ObservedPeer

BROKER: Final = "b1"
OPTIONAL: Final = tuple(name for name in ErrorDetail.__struct_fields__ if name not in ("message", "backtrace"))
CONFIGURED: Final = (
    *("worker", "slots", "prefetch", "heartbeat_ms", "labels", "accept_delay_ms", "max_message_bytes", "host"),
    *("handler_version", "pid", "pid_started", "proof", "curve"),
)

R = TypeVar("R")


class ObservedHeld(NamedTuple):
    """A delivery that the session holds, as its last reply says."""

    state: HeldState
    timeout_at_ms: float

    @property
    def reported_state(self) -> HeldState:
        return self.state


class DrivenSession:
    """One life of a worker. `fail` reports a broken rule, and ends the seed."""

    def __init__(self, driver: Driver, config: Config, fail: Callable[[str], NoReturn]) -> None:
        self._driver = driver
        self._config = config
        self._fail = fail
        self._offers = Offers(config.offers)
        self._steps: dict[Item, tuple[StepRequest, float]] = {}  # received, and when
        self._runs: dict[Item, Run] = {}
        self._actions: list[Action] | None = None  # of the op that the caller has just passed
        self._wake_at_ms = -NEVER
        self._holding: list[HeldItem] = []
        self.holdings: dict[Item, ObservedHeld] = {}
        dropped = Log("warning", "session_dropped", {})
        self._early: list[Action] = []  # what happens before the actions of the reply
        self.peer = ObservedPeer(lambda: self._early.append(dropped))
        self.brokers = {BROKER: self.peer}

    # -- facts in -----------------------------------------------------------------------------------------------------

    def start(self, now_ms: float) -> None:
        members = {name: getattr(self._config, name) for name in CONFIGURED}
        self._exchange({"op": "start", "offers": self._config.offers} | members, now_ms)

    def receive(self, topic: bytes, body: bytes, now_ms: float) -> None:
        self.peer.check(now_ms)
        message = codec.decode_broker(body)
        self.peer.received(topic, message, now_ms)
        if isinstance(message, Steps):
            for step in message.steps:
                self._steps.setdefault((step.step_id, int(step.delivery)), (step, now_ms))  # type: ignore[arg-type]
        self._exchange({"op": "receive", "frame": (topic + body).decode()}, now_ms)

    def finished(self, item: Item, result: Result, now_ms: float) -> None:
        """The run has ended. A driver reports the metadata of results only if they are completed."""
        step_id, delivery = item
        op: dict[str, Any] = {"step_id": step_id, "delivery": delivery}
        if result.error is None:
            op |= {"op": "complete", "output": result.output, "metadata": result.metadata}
        else:
            error = result.error
            members = {name: value for name in OPTIONAL if (value := getattr(error, name)) is not None}
            op |= {"op": "fail", "message": error.message, "status": result.status} | members
        self._runs.pop(item, None)
        self._exchange(op, now_ms)

    def progressed(self, item: Item, done: float, total: float | None, note: str | None, now_ms: float) -> None:
        op = {"op": "progress", "step_id": item[0], "delivery": item[1], "done": done, "total": total, "note": note}
        self._exchange(op, now_ms)

    def drain(self, now_ms: float) -> None:
        self._exchange({"op": "drain"}, now_ms)

    def expel(self, now_ms: float) -> None:
        self._exchange({"op": "expel"}, now_ms)

    def quiet(self, now_ms: float) -> None:
        self._exchange({"op": "quiet"}, now_ms)

    def full(self, is_full: bool, now_ms: float) -> None:
        self._exchange({"op": "full", "is_full": is_full}, now_ms)

    # -- actions out --------------------------------------------------------------------------------------------------

    def actions(self, now_ms: float) -> list[Action]:
        """The actions that the last op caused; without one, those that time has made due."""
        if self._actions is None:
            self._exchange({"op": "tick"}, now_ms)
        assert self._actions is not None
        actions, self._actions = self._actions, None
        return actions

    def wake_at(self) -> float:
        return self._wake_at_ms

    @property
    def is_idle(self) -> bool:
        return not self._holding

    def holding(self, now_ms: float) -> list[HeldItem]:
        return self._holding

    # -- the driver ---------------------------------------------------------------------------------------------------

    def _exchange(self, op: dict[str, Any], now_ms: float) -> None:
        assert self._actions is None, "the actions of the op before were not performed"
        self.peer.check(now_ms)
        try:
            reply = self._driver.exchange(op | {"now_ms": now_ms})
            actions = [self._action(line, now_ms) for line in reply.get("actions", ())]
            wake_at_ms = reply["wake_at_ms"]
            self._holding = [(item[0], item[1], item[2], item[3]) for item in reply["holding"]]
        except Failed as failed:
            self._fail(str(failed))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._fail(f"the reply to {op['op']!r} has not the form of DRIVER.md: {type(error).__name__}: {error}")
        self._wake_at_ms = NEVER if wake_at_ms is None else max(now_ms, wake_at_ms)
        self.holdings = {(held[0], held[1]): self._held(held) for held in self._holding}
        self._actions = self._early + [action for action in actions if action is not None]
        self._early = []

    def _held(self, held: HeldItem) -> ObservedHeld:
        run = self._runs.get((held[0], held[1]))
        return ObservedHeld(held[2], NEVER if run is None else run.timeout_at_ms)

    def _action(self, line: dict[str, Any], now_ms: float) -> Action | None:
        """The action that this line of a reply names. None: a log line, or an action that is not known."""
        match line["action"]:
            case "send":
                topic, body = codec.split(line["frame"].encode())
                self.peer.sent(body, now_ms)
                return Send(topic, body)
            case "run":
                return self._begun((line["step_id"], line["delivery"]), now_ms)
            case "request_stop":
                return CancelRun((line["step_id"], line["delivery"]), line["reason"])
            case "quit":
                return Quit()
            case "connect":
                return Connect(Link(line["steps"], line["results"]), line["server_key"])
            case "disconnect":
                return Disconnect(Link(line["steps"], line["results"]))
            case "rebuild":
                return Rebuild(Link(line["steps"], line["results"]))
            case _:
                return None

    def _begun(self, item: Item, now_ms: float) -> Run:
        """A run that has begun in the driver, which has checked its lease."""
        if item not in self._steps:
            self._fail(f"it runs {item}, which it did not receive")
        step, received_ms = self._steps[item]
        offer = self._offers.find(step.handler_class)
        if offer is None:
            self._fail(f"it runs {item} of {step.handler_class!r}, which it does not offer")
        lease = Lease()
        lease.until_ms = NEVER
        timeout_ms = step.metadata.timeout_ms or NEVER
        deadline_ms = step.metadata.deadline_ms
        run = Run(item, step, offer, lease, timeout_ms, NEVER if deadline_ms is None else received_ms + deadline_ms)
        run.begin(now_ms)
        self._runs[item] = run
        return run


class DriversRunSlots:
    """The place of the run slots: a driver has its own, so each run that it writes has a slot."""

    def add(self, runs: Iterable[R]) -> list[R]:
        return list(runs)

    def release(self, run: object) -> None:
        return None
