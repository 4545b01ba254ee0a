"""The invariants of a worker, checked from outside: on the frames, the actions and the list of held deliveries.

Every rule is one that no loss, delay, repetition or lie of a broker suspends. A rule that needs certainty about a fact
which the frames do not show (that a session is open at this moment) waits for the worker's own claim in a heartbeat.
"""

from collections.abc import Iterable
from typing import Any, Final

from stepwire_protocol import codec, limits, patterns
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import (
    Accept,
    Ack,
    Adopt,
    Adopted,
    Bye,
    Cancel,
    Go,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Here,
    Item,
    Refuse,
    Refused,
    Reset,
    Results,
    Start,
    Steps,
    Welcome,
)

from conformance import driver_frames
from conformance.driver_process import Failed, Op, Reply

from .known import NEVER, Delivery, KnownBroker, SentResults, Unanswered

SLACK_MS: Final = 1.5  # rounding of a driver's times
ANSWER_MS: Final = 100.0
REPORT_MS: Final = 50.0
RECHECK_MS: Final = 50.0  # a session may see a deadline that passed before the run began this much later
HELLO_GAP_MAX_MS: Final = 5_000.0  # the longest pause after repeated drops
HELLO_GAP_MIN_MS: Final = float(limits.HELLO_RETRY_MS)


class Witness:
    """Observes one session. Every method raises Failed with a sentence when a rule is broken."""

    def __init__(self, start: Op) -> None:
        self._start = start
        self._inbox = f"@{start['worker']}"
        self._offers: list[dict[str, Any]] = start["offers"]
        self._now_ms = 0.0
        self._deliveries: dict[Item, Delivery] = {}
        self._brokers: dict[str, KnownBroker] = {}
        self._unacked: dict[int, SentResults] = {}
        self._unanswered: list[Unanswered] = []
        self._doubtful: list[tuple[str, str, Item]] = []  # (broker, session, item) that were cancelled
        self._batches: dict[str, set[Item]] = {}
        self._reused: set[str] = set()
        self._acked: set[int] = set()
        self._sent_ms: dict[int, float] = {}  # of hello and heartbeat, by n
        self._holding: dict[Item, str] = {}
        self._n = 0
        self._rid = 0
        self._hello_ms = -NEVER
        self._heartbeat_ms = -NEVER
        self._reset_ms = -NEVER
        self._is_closed = False  # quiet or drain: no credit from now on
        self._is_full = False
        self._may_quit = False
        self._says_bye = False
        self._has_quit = False

    def observe(self, op: Op, reply: Reply) -> None:
        """Check one op and its reply."""
        self._now_ms = op["now_ms"]
        if "error" in reply:
            raise Failed(f"the driver reports an error: {reply['error']}")
        if op["op"] == "receive":
            self._on_received(op)
        else:
            self._on_local(op)
        after = {(s, d): state for s, d, state, _ in reply["holding"]}
        for action in reply["actions"]:
            match action["action"]:
                case "send":
                    self._on_frame(action["frame"], after)
                case "run":
                    self._on_run((action["step_id"], action["delivery"]))
                case "request_stop":
                    self._on_stop((action["step_id"], action["delivery"]), action["reason"])
                case "quit":
                    self._on_quit(after)
        self._holding = after
        for item in after:
            if (delivery := self._deliveries.get(item)) is not None:
                delivery.was_held = True
        self._check_times()

    def finish(self, brokers: Iterable[str]) -> None:
        """Check the end of a course whose last part was without losses: everything is reported and acknowledged."""
        if self._has_quit:
            return
        if self._holding:
            raise Failed(f"after a time without losses the worker still holds {self._holding}")
        if self._says_bye:
            raise Failed("the worker drained, holds nothing, and did not quit")
        for id in brokers:
            broker = self._brokers.get(id)
            if broker is None or broker.claimed is None:
                raise Failed(f"after a time without losses the worker has no session with {id}")

    # -- facts to the session -----------------------------------------------------------------------------------------

    def _on_local(self, op: Op) -> None:
        match op["op"]:
            case "complete" | "fail":
                delivery = self._deliveries.get((op["step_id"], op["delivery"]))
                if delivery is not None and delivery.is_running:
                    delivery.ended_ms = self._now_ms
                    delivery.was_interrupted_at_end = delivery.is_interrupted
                    delivery.is_owed = not delivery.is_orphan
            case "quiet":
                self._is_closed = True
            case "full":
                self._is_full = op["is_full"]
            case "drain":
                self._is_closed = self._may_quit = True

    def _on_received(self, op: Op) -> None:
        topic, space, body = op.get("frame", "").partition(" ")
        if not space or topic not in (self._inbox, "brokers"):
            return
        data = body.encode()
        if len(data) > self._start["max_message_bytes"]:
            return
        try:
            message = codec.decode_broker(data)
        except InvalidMessage:
            return
        if topic == "brokers" and not isinstance(message, Here):
            return
        broker = self._brokers.setdefault(message.broker, KnownBroker())
        session = getattr(message, "session", None)
        is_claimed = session is not None and session == broker.claimed
        is_claimed &= session is None or int(session.partition(".")[0]) == message.epoch
        match message:
            case Here():
                broker.is_known = True
                self._on_deployment(message.broker, message.deployment)
            case Welcome():
                self._on_deployment(message.broker, message.deployment)
                if message.n in self._sent_ms:
                    longest_ms = max(
                        message.lease_ms, broker.lease_ms.get(message.session, 0)
                    )  # a worker may ignore one
                    broker.lease_ms[message.session] = longest_ms
                    self._extend(broker, message.session, message.n, message.lease_ms)
            case HeartbeatAck():
                if message.n in self._sent_ms and message.session in broker.lease_ms:
                    self._extend(broker, message.session, message.n, broker.lease_ms[message.session])
                self._may_quit |= message.quit and is_claimed
            case Steps() if is_claimed:
                self._on_steps(message)
            case Go() if is_claimed:
                for item in message.items:
                    if item in self._deliveries and self._holding.get(item) == "asking":
                        self._deliveries[item].is_granted = True
            case Cancel() if is_claimed:
                assert session is not None
                for item in message.items:
                    if item in self._deliveries and message.reason == "timeout":
                        self._deliveries[item].is_timed_out_by_broker = True
                cancelled = [item for item in message.items if item not in self._holding]
                self._doubtful += [(message.broker, session, item) for item in cancelled]
            case Adopt() if is_claimed:
                for item in message.items:
                    if item in self._deliveries:
                        self._deliveries[item].brokers.add(message.broker)
            case Reset():
                self._reset_ms = self._now_ms
            case Ack():
                for rid in message.rids:
                    self._acked |= {rid} & self._unacked.keys()
                    self._forget(rid)
            case Refused() if message.rid is not None:
                refused = self._unacked.get(message.rid)
                self._forget(message.rid)
                for item in refused.items if refused else []:
                    self._deliveries[item].is_owed = False

    def _extend(self, broker: KnownBroker, session: str, n: int, lease_ms: int) -> None:
        until_ms = self._sent_ms[n] + lease_ms * limits.LEASE_WORKER_FACTOR
        broker.lease_until_ms[session] = max(broker.lease_until_ms.get(session, 0.0), until_ms)

    def _on_deployment(self, id: str, deployment: str) -> None:
        """Another database: the deliveries of this broker have no owner, and their ids belong to other steps. But the
        message may be old or a lie, which the worker ignores. From then on nothing is certain about them."""
        broker = self._brokers[id]
        if not broker.is_doubtful and broker.deployment in (None, deployment):
            broker.deployment = deployment
            return
        broker.is_doubtful = True
        for rid in [rid for rid, sent in self._unacked.items() if sent.broker == id]:
            self._forget(rid)
        for delivery in self._deliveries.values():
            if id in delivery.brokers:
                delivery.is_orphan = delivery.is_ambiguous = True
                delivery.is_owed = False

    def _on_steps(self, message: Steps) -> None:
        batch_items = set()
        is_readable = message.protocol_version.partition(".")[0] == "2"
        for step in message.steps:
            item = (step.step_id, step.delivery)
            batch_items.add(item)
            delivery = self._deliveries.get(item)
            if not is_readable:
                continue
            if delivery is None or self._is_forgotten(delivery):
                delivery = self._deliveries[item] = Delivery(item, step, message.broker, self._now_ms)
            elif delivery.step != step or item not in self._holding:
                delivery.is_ambiguous = True
            delivery.brokers.add(message.broker)
            delivery.batches.add(message.batch_id)
        if self._batches.setdefault(message.batch_id, batch_items) != batch_items:
            self._reused.add(message.batch_id)  # two batches of one name: an answer to one may be meant for the other
        if batch_items:
            unanswered = Unanswered(message.broker, message.session, message.batch_id, set(batch_items), self._now_ms)
            self._unanswered.append(unanswered)

    def _is_forgotten(self, delivery: Delivery) -> bool:
        """True if the tombstone of this delivery may be gone. Its claims do not show when a session was dropped."""
        last_ms = max(delivery.received_ms, delivery.ended_ms or 0.0)
        is_over = delivery.item not in self._holding and not delivery.is_running
        return is_over and self._now_ms - last_ms > limits.TOMBSTONE_MS - SLACK_MS

    def _forget(self, rid: int) -> None:
        self._unacked.pop(rid, None)

    # -- actions of the session ---------------------------------------------------------------------------------------

    def _on_run(self, item: Item) -> None:
        delivery = self._deliveries.get(item)
        if delivery is None:
            raise Failed(f"{item} began, but was in no steps message of an open session")
        if delivery.is_orphan:
            delivery.begun_ms, delivery.ended_ms = self._now_ms, None
            delivery.stop_reason = None
            return
        if delivery.begun_ms is not None:
            raise Failed(f"{item} began twice: at {delivery.begun_ms:g} and at {self._now_ms:g} ms")
        if delivery.never is not None:
            raise Failed(f"{item} began, although {delivery.never}")
        until_ms = max(self._brokers[id].lease_end_ms() for id in delivery.brokers)
        if self._now_ms >= until_ms:
            raise Failed(f"{item} began at {self._now_ms:g} ms, after the lease, which ended at {until_ms:g} ms")
        if delivery.is_at_most_once and not delivery.is_ambiguous:
            if not delivery.has_asked:
                raise Failed(f"{item} is at_most_once and began without `start`")
            if not delivery.is_granted:
                raise Failed(f"{item} is at_most_once and began without a `go` that answers its `start`")
        delivery.begun_ms = self._now_ms
        self._check_slots(delivery)

    def _check_slots(self, delivery: Delivery) -> None:
        running = [other for other in self._deliveries.values() if other.is_running]
        if len(running) > self._start["slots"]:
            raise Failed(f"{len(running)} steps run in {self._start['slots']} slots")
        offer = self._offer(delivery)
        limit = offer.get("concurrency") if offer else None
        if limit is not None and sum(self._offer(other) is offer for other in running) > limit:
            raise Failed(f"more than {limit} steps of {offer['pattern'] if offer else ''} run at a time")

    def _on_stop(self, item: Item, reason: str) -> None:
        delivery = self._deliveries.get(item)
        if delivery is None or not delivery.is_running:
            raise Failed(f"{item} was asked to stop ({reason}), but does not run")
        if reason == "timeout" and not delivery.is_ambiguous and not delivery.is_timed_out_by_broker:
            assert delivery.begun_ms is not None
            due_ms = self._stop_due_ms(delivery)
            if self._now_ms < due_ms - SLACK_MS:
                raise Failed(f"{item} was stopped by its timeout at {self._now_ms:g} ms, not at {due_ms:g} ms")
        delivery.is_interrupted = True
        if reason != "lease_lost":
            if delivery.stop_reason is not None and not delivery.is_orphan:
                raise Failed(f"{item} was asked to stop twice: {delivery.stop_reason}, {reason}")
            delivery.stop_reason = reason

    def _on_quit(self, holding: dict[Item, str]) -> None:
        if not self._may_quit:
            raise Failed("the worker quit without an order")
        if holding:
            raise Failed(f"the worker quit while it held {holding}")
        self._has_quit = True

    # -- frames of the session ----------------------------------------------------------------------------------------

    def _on_frame(self, text: str, holding: dict[Item, str]) -> None:
        topic, _, body = text.partition(" ")
        try:
            message = driver_frames.decode_worker(body.encode())
        except (InvalidMessage, UnicodeEncodeError) as invalid:
            raise Failed(f"a broker refuses the frame ({invalid}): {text[:500]}") from None
        if message.worker != self._start["worker"]:
            raise Failed(f"the worker calls itself {message.worker}")
        if isinstance(message, Hello | Heartbeat | Bye):
            if topic != "workers":
                raise Failed(f"{text[:60]}… has the topic {topic!r}, not 'workers'")
            self._check_n(message.n, text)
            if isinstance(message, Bye):
                self._is_closed = self._says_bye = True
            else:
                self._on_claims(message)
        elif isinstance(message, Results):
            self._on_results(topic, message, len(body.encode()))
        else:
            self._on_message(topic, message, holding)

    def _check_n(self, n: int, text: str) -> None:
        if n <= self._n:
            raise Failed(f"n is {n} after {self._n}: {text[:200]}")
        self._n = n

    def _on_claims(self, message: Hello | Heartbeat) -> None:
        self._sent_ms[message.n] = self._now_ms
        if isinstance(message, Hello):
            if self._now_ms - self._hello_ms < HELLO_GAP_MIN_MS - SLACK_MS:
                raise Failed(f"two hellos within {self._now_ms - self._hello_ms:g} ms")
            self._hello_ms = self._now_ms
        else:
            self._heartbeat_ms = self._now_ms
        held = {(s, d) for s, d, _, _ in message.holding}
        for item, delivery in self._deliveries.items():
            must_hold = delivery.is_running or delivery.is_owed
            if must_hold and not delivery.is_orphan and item not in held:
                raise Failed(f"`holding` lacks {item}, which runs or is not reported yet")
        for rid, sent in self._unacked.items():
            if missing := [i for i in sent.items if i in self._deliveries and i not in held]:
                raise Failed(f"`holding` lacks {missing}, whose results (rid {rid}) are not acknowledged")
        self._check_free(message.free.values(), message)
        for id, k in message.next.items():
            broker = self._brokers.setdefault(id, KnownBroker())
            if k < broker.next:
                raise Failed(f"`next` of {id} fell from {broker.next} to {k}")
            if k > broker.next:
                broker.next = k
                broker.dropped_ms = self._now_ms
                self._on_drop(id)
            broker.claimed = message.sessions.get(id)
        self._confirm(message)

    def _on_drop(self, id: str) -> None:
        for delivery in self._deliveries.values():
            if delivery.brokers == {id} and delivery.begun_ms is None and delivery.was_held:
                self._ban(delivery, f"its session with {id} was dropped before")

    def _confirm(self, message: Hello | Heartbeat) -> None:
        """The worker claims these sessions: then they were open since they were claimed the first time."""
        for id, session, item in self._doubtful:
            if message.sessions.get(id) == session and item not in self._holding:
                delivery = self._deliveries.get(item)
                if delivery is not None and delivery.begun_ms is None:
                    self._ban(delivery, f"{id} cancelled it before it was received")
        self._doubtful = [d for d in self._doubtful if message.sessions.get(d[0]) == d[1] and self._is_unread(d[2])]
        late_ms = ANSWER_MS + self._start["accept_delay_ms"]
        remaining = []
        for one in self._unanswered:
            if message.sessions.get(one.broker) != one.session or self._has_quit or one.batch_id in self._reused:
                continue
            if self._now_ms - one.received_ms > late_ms:
                raise Failed(f"the steps message {one.batch_id} of {one.broker} was not answered for {one.items}")
            remaining.append(one)
        self._unanswered = remaining

    def _is_unread(self, item: Item) -> bool:
        """True while a cancelled delivery was in no steps message yet: it must be refused when it comes."""
        return item not in self._deliveries

    def _on_message(self, topic: str, message: Any, holding: dict[Item, str]) -> None:
        id = topic.removeprefix("results@")
        broker = self._brokers.get(id)
        if not topic.startswith("results@") or broker is None:
            raise Failed(f"{type(message).__name__} has the topic {topic!r}")
        if message.session not in broker.lease_ms:
            raise Failed(f"{type(message).__name__} names the session {message.session}, which {id} never opened")
        match message:
            case Accept():
                self._check_free([message.free], message)
                self._answered(id, message.batch_id, None)
            case Refuse():
                self._check_free([message.free], message)
                self._answered(id, message.batch_id, set(message.items))
                for item in message.items:
                    self._never(item, holding, f"it was refused ({message.code})")
            case Start():
                for item in message.items:
                    if item in self._deliveries:
                        self._deliveries[item].has_asked = True
            case Adopted():
                for step_id, delivery, state, _ in message.items:
                    if state == "unknown":
                        self._never((step_id, delivery), holding, "`adopted` called it unknown")

    def _never(self, item: Item, holding: dict[Item, str], reason: str) -> None:
        delivery = self._deliveries.get(item)
        if delivery is not None and item not in holding:
            self._ban(delivery, reason)

    def _ban(self, delivery: Delivery, reason: str) -> None:
        delivery.never = delivery.never or reason

    def _answered(self, id: str, batch_id: str, items: set[Item] | None) -> None:
        """An accept answers the batch; a refuse or results answer their items."""
        for one in self._unanswered:
            if items is None and one.broker == id and one.batch_id == batch_id:
                one.items.clear()
            elif items is not None:
                one.items -= items
        self._unanswered = [one for one in self._unanswered if one.items]

    def _on_results(self, topic: str, message: Results, size: int) -> None:
        sent = self._unacked.get(message.rid)
        if topic == "results":
            if sent is None and message.rid > self._rid:
                raise Failed(f"results with rid {message.rid} went to every broker before they went to one")
            return
        id = topic.removeprefix("results@")
        items = {(result.step_id, result.delivery) for result in message.results if isinstance(result.delivery, int)}
        self._answered(id, message.batch_id, items)
        if sent is not None:
            if [(r.status, bytes(r.output)) for r in message.results] != sent.results or message.n != sent.n:
                raise Failed(f"results with rid {message.rid} changed when they were sent again")
            sent.sent_ms, sent.broker = self._now_ms, id
            return
        if message.rid in self._acked:
            raise Failed(f"results with rid {message.rid} were sent after their ack")
        if message.rid <= self._rid:
            return  # refused, or of a broker with another database
        self._rid = message.rid
        self._check_n(message.n, f"results with rid {message.rid}")
        if message.free is not None:
            self._check_free([message.free], message)
        self._check_size(message, size)
        for rid in [rid for rid, other in self._unacked.items() if items & set(other.items)]:
            self._forget(rid)  # moved to another broker
        self._unacked[message.rid] = SentResults(message, id, self._now_ms)
        for result in message.results:
            assert isinstance(result.delivery, int)
            self._on_result(message, (result.step_id, result.delivery), result)

    def _on_result(self, message: Results, item: Item, result: Any) -> None:
        delivery = self._deliveries.get(item)
        if delivery is not None and delivery.is_orphan:
            return
        if delivery is None or delivery.ended_ms is None:
            raise Failed(f"a result of {item}, which has not ended")
        if message.batch_id not in delivery.batches:
            raise Failed(f"a result of {item} names {message.batch_id}, but came in {delivery.batches}")
        delivery.is_owed = False
        is_verdict = result.status == "completed" or result.error.code == "outcome_unknown"
        must_be_unknown = delivery.is_at_most_once and delivery.was_interrupted_at_end and not delivery.is_ambiguous
        if must_be_unknown and not is_verdict:
            raise Failed(f"{item} is at_most_once, was interrupted and failed, but is no outcome_unknown")

    def _check_size(self, message: Results, size: int) -> None:
        is_replaced = len(message.results) == 1 and message.results[0].status == "error"
        if size > limits.MESSAGE_BYTES_MAX and not is_replaced:
            raise Failed(f"results of {size} bytes")

    def _check_free(self, offered: Iterable[int], message: Any) -> None:
        total = sum(offered)
        name = type(message).__name__
        if total and self._is_closed:
            raise Failed(f"{name} offers credit {total}, although the worker is quiet or drains")
        if total and self._is_full:
            raise Failed(f"{name} offers credit {total}, although the runner is full")

    # -- times --------------------------------------------------------------------------------------------------------

    def _check_times(self) -> None:
        """Check what must have happened by now. Every op lets the session act, so a late op is no excuse."""
        if self._has_quit:
            return
        for rid, sent in self._unacked.items():
            if self._now_ms - sent.sent_ms > limits.RESULTS_RETRANSMIT_MAX_MS + SLACK_MS:
                raise Failed(f"the results with rid {rid} were not sent again since {sent.sent_ms:g} ms")
        for delivery in self._deliveries.values():
            if delivery.is_owed and delivery.ended_ms is not None and self._now_ms - delivery.ended_ms > REPORT_MS:
                raise Failed(f"{delivery.item} ended at {delivery.ended_ms:g} ms and was not reported")
            if delivery.is_running and delivery.stop_reason is None and not delivery.is_ambiguous:
                assert delivery.begun_ms is not None
                due_ms = max(self._stop_due_ms(delivery), delivery.begun_ms + RECHECK_MS)
                if self._now_ms > due_ms + SLACK_MS:
                    raise Failed(f"{delivery.item} should have been asked to stop at {due_ms:g} ms: its time is over")
        if self._now_ms - self._heartbeat_ms > self._start["heartbeat_ms"] + SLACK_MS and self._heartbeat_ms > 0:
            raise Failed(f"no heartbeat since {self._heartbeat_ms:g} ms")
        for id, broker in self._brokers.items():
            since_ms = max(self._hello_ms, self._reset_ms, broker.dropped_ms, min(broker.lease_end_ms(), self._now_ms))
            is_late = self._now_ms - since_ms > HELLO_GAP_MAX_MS + SLACK_MS
            if broker.is_known and broker.claimed is None and is_late:
                raise Failed(f"no hello since {self._hello_ms:g} ms, although {id} has no session")

    def _stop_due_ms(self, delivery: Delivery) -> float:
        """The time at which a run must be asked to stop: its timeout counts from its begin."""
        assert delivery.begun_ms is not None
        metadata = delivery.step.metadata
        offer = self._offer(delivery) or {}
        timeouts = [metadata.timeout_ms or NEVER, offer.get("timeout_ms") or NEVER]
        due_ms = delivery.begun_ms + min(timeouts)
        if metadata.deadline_ms is not None:
            due_ms = min(due_ms, delivery.received_ms + metadata.deadline_ms)
        return due_ms

    def _offer(self, delivery: Delivery) -> dict[str, Any] | None:
        name = delivery.step.handler_class
        exact = (offer for offer in self._offers if offer["pattern"] == name)
        fitting = (offer for offer in self._offers if patterns.matches(offer["pattern"], name))
        return next(exact, None) or next(fitting, None)
