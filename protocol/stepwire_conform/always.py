"""Rules that hold for every frame of a worker, in every case."""

import json
import re
from typing import Any, Final

from stepwire_protocol import codec, topics
from stepwire_protocol.errors import InvalidMessage

from .case import RuleBroken
from .frames import Message

KINDS_OF_WORKERS: Final = frozenset({"hello", "heartbeat", "bye", "gone"})
KNOWN_KINDS: Final = KINDS_OF_WORKERS | {"accept", "refuse", "start", "results", "adopted", "progress"}
RETURNED_AFTER_ACCEPT: Final = frozenset({"busy", "stale", "draining"})
_GLUED: Final = re.compile(rb"^(workers|results(?:@[a-z0-9-]{1,32})?)\{")
_NEAR: Final = re.compile(rb"^(worker|workers?@[^ ]*|result|result@[^ ]*|results@[A-Z][^ ]*|step|steps) ?\{?")

Item = tuple[int, int]


def decoded(frames: list[bytes], *, is_level0: bool) -> Message:
    """The message in these frames. Raises RuleBroken if a receiver would refuse it. The caller sets broker and time."""
    if len(frames) != 1:
        raise RuleBroken(
            f"a message of {len(frames)} frames: {frames[0][:60]!r}, {frames[1][:60]!r}",
            rule="A message is one frame: topic, one space, JSON",
            section="2",
            cause="topic and JSON are sent as two frames (a multipart send): join them with one space",
        )
    frame = frames[0]
    if glued := _GLUED.match(frame):
        raise RuleBroken(
            f"the frame {frame[:60]!r} has no space after its topic",
            rule="A message is one frame: topic, one space, JSON",
            section="2",
            cause=f"the space after {glued[1].decode()!r} is missing",
        )
    try:
        topic, body = codec.split(frame)
    except InvalidMessage as refusal:
        raise RuleBroken(f"the frame {frame[:60]!r} is refused: {refusal}", section="2") from None
    if topic not in (topics.WORKERS, topics.RESULTS) and not topic.startswith(b"results@"):
        near = "the topic is misspelt" if _NEAR.match(frame) else ""
        raise RuleBroken(
            f"no broker subscribes the topic {topic!r}",
            rule="A worker sends on `workers `, `results@<broker> ` and `results `",
            section="2",
            cause=near,
        )
    try:
        if is_level0:
            codec.decode_results_level0(body)
        else:
            codec.decode_worker(body)
    except InvalidMessage as refusal:
        raise RuleBroken(
            f"a broker refuses this message: {refusal.code}: {refusal}\n{frame[:400].decode(errors='replace')}",
            rule="A sender must not send a message that breaks the rules of JSON or of its members",
            section="3, 5 and 17" if is_level0 else "3 and 5",
            cause=_cause_of_refusal(str(refusal), body),
        ) from None
    return Message(topic.decode(), json.loads(body), frame, "", 0.0)


def _cause_of_refusal(text: str, body: bytes) -> str:
    if "worker" in text and re.search(rb'"worker" ?: ?"[^":]*"', body):
        return "`worker` needs a colon and 16 hexadecimal digits after the name, new for each process"
    if "not_a_number" in text or "NaN" in text:
        return "the JSON encoder writes NaN: switch that off, and report the output as `error`"
    return ""


class Watch:
    """All that one worker process was sent and has answered. `see` raises RuleBroken at the first broken rule."""

    def __init__(self) -> None:
        self.worker: str | None = None
        self.hello: Message | None = None
        self.slots = 1
        self.modes: dict[Item, str] = {}  # of every step that was sent
        self.batches: dict[Item, set[str]] = {}
        self.granted: set[Item] = set()
        self.answered: dict[Item, int] = {}  # the rid of the first result
        self.copies: dict[int, list[Message]] = {}  # every copy of a results message, by rid
        self.allows_second_answer = False
        self.allows_many_workers = False
        self.allows_lost_order = False
        self._n: dict[str, int] = {}  # the highest at each broker: their connections keep no common order
        self._running: set[Item] = set()
        self._rid = self._n_of_rid = 0  # the highest rid, and the `n` of its message
        self._bodies: dict[int, dict[str, Any]] = {}

    def sent(self, item: Item, mode: str, batch: str) -> None:
        self.modes[item] = mode
        self.batches.setdefault(item, set()).add(batch)

    def see(self, message: Message) -> None:
        """Check one message against everything known of its sender."""
        self._check_sender(message)
        self._check_topic(message)
        kind = message.kind
        if kind == "hello":
            self.hello = message
            self.slots = message["slots"]
        if kind in ("hello", "heartbeat", "bye"):
            self._check_n(message)
        if kind in ("hello", "heartbeat"):
            self._check_holding(message)
            for broker, free in message.get("slots_free", {}).items():
                if broker in message.get("free", {}) and free > message["free"][broker]:
                    raise RuleBroken(
                        f"slots_free of {broker} is {free}, and free is only {message['free'][broker]}",
                        rule="`slots_free` is a part of `free`",
                        section="5",
                    )
        if kind == "results":
            self._check_results(message)
        if kind == "refuse":
            self._check_known(message, [tuple(item) for item in message["items"]])
        if kind == "start":
            self._check_start(message)

    def _check_sender(self, message: Message) -> None:
        if self.worker is None:
            self.worker = message["worker"]
        elif message["worker"] != self.worker and not self.allows_many_workers:
            raise RuleBroken(
                f"the sender changed from {self.worker} to {message['worker']}",
                rule="`worker` lives as long as its process",
                section="4",
                cause="each message or session gets another id, or two processes run",
            )

    def _check_topic(self, message: Message) -> None:
        kind, topic = message.kind, message.topic
        fits = topic == "workers " if kind in KINDS_OF_WORKERS else topic.startswith("results")
        if topic == "results " and kind != "results":
            fits = False
        if not fits:
            raise RuleBroken(
                f"`{kind}` on the topic {topic!r}",
                rule="hello, heartbeat and bye go on `workers `; all other messages on `results@<broker> `",
                section="2",
            )

    def _check_n(self, message: Message) -> None:
        n, latest = message.get("n", 0), self._n.get(message.broker, -1)
        if n <= latest and not self.allows_lost_order and not self.allows_many_workers:
            raise RuleBroken(
                f"`n` is {n} in this {message.kind}, after {latest}",
                rule="`n` is one counter: every hello, heartbeat, bye and new results message takes a higher one",
                section="4",
            )
        self._note_n(message.broker, n)

    def _note_n(self, broker: str, n: int) -> None:
        self._n[broker] = max(self._n.get(broker, -1), n)

    def _check_holding(self, message: Message) -> None:
        running = set()
        for step_id, delivery, state, _ in message.get("holding", []):
            item = (step_id, delivery)
            self._check_known(message, [item])
            if state == "running":
                running.add(item)
            if state == "running" and self.modes.get(item) == "at_most_once" and item not in self.granted:
                raise RuleBroken(
                    f"the at_most_once delivery {list(item)} is reported as running without a `go`",
                    rule="An at_most_once step runs only after `go`",
                    section="12",
                )
        # One report may mix runs that have just ended with those that follow them; two reports in a row may not.
        lasting = running & self._running
        self._running = running
        if len(lasting) > self.slots and not self.allows_many_workers:
            raise RuleBroken(
                f"{len(lasting)} steps are reported as running, twice in a row, with {self.slots} slots",
                rule="A worker runs at most `slots` steps at a time",
                section="9",
            )

    def _check_known(self, message: Message, items: list[Any]) -> None:
        for item in items:
            if item not in self.modes:
                raise RuleBroken(
                    f"`{message.kind}` names {list(item)}, which was never sent to this worker",
                    rule="An item is [step_id, delivery] of a step that the worker received",
                    section="4",
                )

    def _check_start(self, message: Message) -> None:
        for item in map(tuple, message["items"]):
            self._check_known(message, [item])

    def _check_results(self, message: Message) -> None:
        rid = message["rid"]
        first = self._bodies.get(rid)
        if first is not None:
            changing = ("session", "deployment", "n", "free", "slots_free")
            if _without(first, changing) != _without(message.body, changing):
                raise RuleBroken(
                    f"rid {rid} was used for two different messages",
                    rule="A results message that is sent again keeps its content; a new one takes the next `rid`",
                    section="5",
                )
            self.copies[rid].append(message)
            return
        # A message that a connection lost arrives later for the first time. Its `n` shows that it is the older one.
        n = message.get("n", 0)
        if rid <= self._rid and n >= self._n_of_rid and not self.allows_lost_order:
            raise RuleBroken(
                f"`rid` is {rid}, after {self._rid}",
                rule="`rid` is one counter over all results messages of the process",
                section="4",
            )
        if rid > self._rid:
            self._rid, self._n_of_rid = rid, n
        self._bodies[rid] = message.body
        self.copies[rid] = [message]
        self._note_n(message.broker, n)
        for result in message["results"]:
            self._check_result(message, result)

    def _check_result(self, message: Message, result: dict[str, Any]) -> None:
        item = (result["step_id"], result["delivery"])
        self._check_known(message, [item])
        if message["batch_id"] not in self.batches[item]:
            raise RuleBroken(
                f"the result of {list(item)} names {message['batch_id']}, and the step was sent in"
                f" {', '.join(sorted(self.batches[item]))}",
                rule="A results message holds the outcomes of steps of one batch, and names that batch",
                section="5",
            )
        ran = result["status"] != "error"
        if self.modes[item] == "at_most_once" and item not in self.granted and ran:
            raise RuleBroken(
                f"the at_most_once delivery {list(item)} has run without a `go`",
                rule="An at_most_once step runs only after `go`",
                section="12",
                cause="the step is started before `start` was answered",
            )
        if item in self.answered and not self.allows_second_answer:
            raise RuleBroken(
                f"{list(item)} has two results, in rid {self.answered[item]} and rid {message['rid']}",
                rule="An item never runs twice in one process; a result that is sent again keeps its rid",
                section="10",
                cause="a repeated `steps` message starts the step again",
            )
        self.answered.setdefault(item, message["rid"])

    def forget(self, keep: int) -> None:
        """Forget all but the latest items and messages, so that a long case does not need the memory itself."""
        for known in (self.modes, self.batches, self.answered):
            while len(known) > keep:
                del known[next(iter(known))]
        for kept in (self._bodies, self.copies):
            while len(kept) > keep:
                del kept[next(iter(kept))]


def _without(body: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}
