"""Plays the broker of a dialogue against a driver, in simulated time."""

import base64
import json
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
from stepwire_protocol import codec
from stepwire_protocol.errors import InvalidMessage

from . import driver_frames
from .dialogue import WORKER, Dialogue, Frame, play
from .driver_process import REPLY_TIMEOUT_S, DriverProcess, Failed, Op, Reply
from .values import members

# A session that sends without end while no time passes would block the runner forever.
EXCHANGES_AT_ONE_TIME_MAX: Final = 1_000
# A driver may ask for unnecessary ticks, but the dialogue must not take minutes.
TICKS_MAX: Final = 100_000


class DriverUnderTest:
    """A driver's process that is started when it is needed, and started again after a failure."""

    def __init__(self, command: Sequence[str], timeout_s: float = REPLY_TIMEOUT_S) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._process: DriverProcess | None = None

    def __enter__(self) -> "DriverUnderTest":
        return self

    def __exit__(self, *args: object) -> None:
        self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def running(self) -> DriverProcess:
        """The process. Raises OSError if the command cannot be started."""
        if self._process is None:
            self._process = DriverProcess(self._command, self._timeout_s)
        return self._process

    def grade(self, dialogue: Dialogue) -> str | None:
        """Play the dialogue in a new session. Returns None, or why the driver failed."""
        reason = grade(dialogue, self.running())
        if reason is not None:
            self.end()  # its state is unknown, and the next dialogue must not suffer
        return reason


class AnyDriver(Protocol):
    """A driver, in another process or in this one."""

    def exchange(self, op: Op) -> Reply:
        """Send one op and return its reply. Raises Failed if there is none, or if the reply is an error."""


def grade(dialogue: Dialogue, driver: AnyDriver) -> str | None:
    """Play the dialogue in a new session of this driver. Returns None, or why the driver failed."""
    try:
        play(dialogue, "worker", _DriverStage(dialogue, driver))
    except Failed as failed:
        return str(failed)
    return None


class _DriverStage:
    """A worker's session in a process, in simulated time. Its broker is played."""

    def __init__(self, dialogue: Dialogue, driver: AnyDriver) -> None:
        given = dialogue.given
        self._driver = driver
        self._now_ms = 0
        self._wake_at_ms: float | None = None
        self._exchanges = 0
        self._ticks = 0
        self._sent: deque[Frame] = deque()
        self._runs: list[tuple[int, int]] = []
        self._stops: list[tuple[int, str]] = []
        self._is_gone = False
        self._links: list[tuple[str, str, str | None]] = []  # connected, disconnected or rebuilt
        self._acks = given.get("acks", True)
        self._silent: set[str] = set()  # brokers that acknowledge no heartbeats at the moment
        self._welcomes: dict[str, dict[str, Any]] = {}  # by broker
        self._ended: set[tuple[int, int]] = set()
        start = {
            "worker": WORKER,
            "offers": [{"pattern": name} for name in given["handlers"]],
            "slots": given["slots"],
            "prefetch": given["prefetch"],
            "heartbeat_ms": min(2_000, given["lease_ms"] // 5),
        }
        self._do("start", **start | given.get("worker", {}))

    # -- the stage ----------------------------------------------------------------------------------------------------

    def send(self, topic: str, body: bytes, peer: str | None = None) -> None:
        try:
            message = json.loads(body)
            text = body.decode()
        except ValueError:
            frame = topic.encode() + body
            self._do("receive", frame_base64=base64.b64encode(frame).decode())
            return
        if isinstance(message, dict) and message.get("type") == "welcome":
            self._welcomes[message["broker"]] = message
        self._do("receive", frame=topic + text)

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        raise NotImplementedError("only level-0 handlers subscribe in a dialogue, and the broker is real there")

    def receive(self, until_ms: int) -> Frame | None:
        while not self._sent and self._now_ms < until_ms:
            self._tick(until_ms)
        return self._sent.popleft() if self._sent else None

    def now_ms(self) -> int:
        return self._now_ms

    def wait_until(self, at_ms: int) -> None:
        while self._now_ms < at_ms:
            self._tick(at_ms)

    def be_silent(self, for_ms: int, broker: str | None = None) -> None:
        self._silent = set(self._welcomes) if broker is None else {broker}
        self.wait_until(self._now_ms + for_ms)
        self._silent = set()

    def act(self, what: str, facts: dict[str, Any]) -> None:
        if what in ("complete", "fail", "progress"):
            item = (facts["step_id"], facts["delivery"])
            if item not in self._runs:
                raise Failed(f"the run of step {facts['step_id']}, delivery {facts['delivery']}, was not started")
            if what != "progress":
                self._ended.add(item)
        self._do(what, **facts)

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        match what:
            case "ran":
                times = self._runs.count((facts["step_id"], facts["delivery"]))
                return None if times == facts["times"] else f"the step ran {times} times, not {facts['times']}"
            case "stop_requested":
                times = self._stops.count((facts["step_id"], facts["reason"]))
                is_right = times == facts["times"] if "times" in facts else times > 0
                return None if is_right else f"these requests to stop were made: {self._stops}"
            case "running":
                return self._running_problem((facts["step_id"], facts["delivery"]))
            case "gone":
                return None if self._is_gone else "the worker has not quit"
            case "not_gone":
                return "the worker has quit" if self._is_gone else None
            case "connected" | "disconnected" | "rebuilt":
                did = {"connected": "connect", "disconnected": "disconnect", "rebuilt": "rebuild"}[what]
                links = [link for link in self._links if link[:2] == (did, facts["steps"])]
                times = sum(facts.get("server_key", key) == key for _, _, key in links)
                wanted = facts.get("times", 1)
                return None if times == wanted else f"{facts['steps']} was {what} {times} times, not {wanted}"
        raise ValueError(what)

    def _running_problem(self, item: tuple[int, int]) -> str | None:
        if item not in self._runs or item in self._ended:
            return f"{item} does not run; these runs began: {self._runs}"
        reasons = [reason for step_id, reason in self._stops if step_id == item[0]]
        return f"{item} was asked to stop: {reasons}" if reasons else None

    # -- the driver --------------------------------------------------------------------------------------------------

    def _tick(self, until_ms: int) -> None:
        """Advance to the time at which the session must act next, or to `until_ms` if that is earlier."""
        wake_at_ms = until_ms if self._wake_at_ms is None else min(until_ms, int(-(-self._wake_at_ms // 1)))
        self._now_ms = max(self._now_ms + 1, wake_at_ms)
        self._exchanges = 0
        self._ticks += 1
        if self._ticks > TICKS_MAX:
            raise Failed(f"the driver asked to be woken more than {TICKS_MAX:,} times")
        self._do("tick")

    def _do(self, op: str, **members: Any) -> None:
        """Send one op, and then the acks of the heartbeats that the driver sends in reply."""
        pending = deque([{"op": op, "now_ms": self._now_ms, **members}])
        while pending:
            self._exchanges += 1
            if self._exchanges > EXCHANGES_AT_ONE_TIME_MAX:
                raise Failed(f"the driver replied to {EXCHANGES_AT_ONE_TIME_MAX:,} ops without letting time pass")
            reply = self._driver.exchange(pending.popleft())
            try:
                acks = [ack for action in reply.get("actions", []) for ack in self._apply(action)]
                wake_at_ms = reply.get("wake_at_ms")
                self._wake_at_ms = None if wake_at_ms is None else float(wake_at_ms)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Failed(f"the driver's reply cannot be used ({error!r}): {json.dumps(reply)[:500]}") from None
            for ack in acks:
                pending.append({"op": "receive", "now_ms": self._now_ms, "frame": ack})

    def _apply(self, action: dict[str, Any]) -> list[str]:
        """Perform one action of the driver. Returns the acks if the action sends a heartbeat."""
        match action["action"]:
            case "send":
                return self._on_sent(action["frame"])
            case "run":
                self._runs.append((action["step_id"], action["delivery"]))
            case "request_stop":
                self._stops.append((action["step_id"], action["reason"]))
            case "quit":
                self._is_gone = True
            case "connect" | "disconnect" | "rebuild":
                self._links.append((action["action"], action["steps"], action.get("server_key")))
        return []

    def _on_sent(self, frame: str) -> list[str]:
        try:
            topic, body = codec.split(frame.encode())
            message = members(driver_frames.decode_worker(body))
        except InvalidMessage as invalid:
            raise Failed(f"the driver sent a message that brokers refuse ({invalid}): {frame[:500]}") from None
        self._sent.append(Frame(topic.decode(), message))
        if message["type"] != "heartbeat" or not self._acks:
            return []
        return [
            self._ack(welcome, message["n"])
            for broker, welcome in self._welcomes.items()
            if broker not in self._silent and message["sessions"].get(broker) == welcome["session"]
        ]

    def _ack(self, welcome: dict[str, Any], n: int) -> str:
        ack = {name: welcome[name] for name in ("v", "broker", "epoch", "session")} | {"type": "heartbeat_ack", "n": n}
        return f"@{WORKER} {msgspec.json.encode(ack).decode()}"
