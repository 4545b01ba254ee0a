"""Sends the results of finished runs, and ends their deliveries when a broker acknowledges or refuses the message."""

import math
from collections.abc import Iterable
from typing import Final

import msgspec
from stepwire_protocol import codec
from stepwire_protocol.messages import Ack, ErrorDetail, Refused, Result, Results

from stepwire.actions import NEVER, ResultTooLarge
from stepwire.errors import OUTCOME_UNKNOWN

from .brokers import BrokerPeer
from .credit import Credit
from .deliveries import DONE, HeldBatch, HeldDelivery, ResultsMessage
from .holdings import HeldDeliveries
from .intake import Intake
from .outbox import ResultsOutbox, decode_results
from .outgoing import Outgoing, V, parts

HOLD_MS: Final = 1.0
MIB: Final = 1024 * 1024

# With these codes the broker does not refuse the content of a results message, so other content would not help.
_HOPELESS: Final = frozenset({"wrong_batch", "wrong_sender", "unknown_delivery", "unknown_session", "unknown_type"})


class ResultsReporting:
    """Reports results. A message holds results of one batch, so a result waits at most HOLD_MS for others of its batch:
    until the batch is whole, or nothing runs, or the observed pace promises none in that time."""

    def __init__(
        self, holdings: HeldDeliveries, credit: Credit, intake: Intake, outbox: ResultsOutbox, out: Outgoing
    ) -> None:
        self._holdings = holdings
        self._credit = credit
        self._intake = intake
        self._outbox = outbox
        self._out = out
        self.send_at_ms = NEVER
        self._ready: dict[HeldBatch, None] = {}  # batches with results that are not sent
        self._whole: list[HeldBatch] = []  # those of them whose steps have all ended
        self._rid = 0

    def add(self, held: HeldDelivery, result: Result, now_ms: float) -> None:
        batch = held.batch
        batch.ready.append((held, result))
        batch.open -= 1
        if not batch.open:
            self._whole.append(batch)
        self._ready[batch] = None
        if self.send_at_ms == NEVER:
            self.send_at_ms = now_ms + HOLD_MS

    @property
    def has_whole(self) -> bool:
        """True if all steps of a batch have ended, so its results can be sent."""
        return bool(self._whole)

    def is_due(self, now_ms: float, runs: int) -> bool:
        """True if results must be sent now. `runs`: the number of steps that could still add to them."""
        if self.send_at_ms == NEVER:
            return False
        return (
            now_ms >= self.send_at_ms
            or not runs
            or bool(self._whole)
            or self._holdings.pace.steps_in(HOLD_MS, now_ms) < 1  # none is expected in time
        )

    def send_due(self, now_ms: float, runs: int) -> None:
        """Send the results of whole batches; all results, if none is expected in time. Called if `is_due`."""
        whole, self._whole = self._whole, []
        if now_ms < self.send_at_ms and runs and self._holdings.pace.steps_in(HOLD_MS, now_ms) >= 1:
            for batch in whole:
                self._ready.pop(batch, None)
            ready: Iterable[HeldBatch] = whole
        else:
            ready, self._ready = self._ready, {}
        if not self._ready:
            self.send_at_ms = NEVER
        for batch in ready:
            done = [pair for pair in batch.ready if pair[0].state is DONE]
            batch.ready = []
            owners = dict.fromkeys(held.peer for held, _ in done)
            for peer in owners:
                own = done if len(owners) == 1 else [pair for pair in done if pair[0].peer is peer]
                for part in parts(own):
                    self._send(peer, batch, part, now_ms)

    def on_ack(self, message: Ack, now_ms: float) -> None:
        for rid in message.rids:
            acked = self._outbox.remove(rid)
            if acked is not None:
                self._holdings.bury_acknowledged(acked, now_ms)

    def on_refused(self, message: Refused, now_ms: float) -> None:
        self._out.log(
            "error",
            "message_refused",
            broker=message.broker,
            refused=message.refused,
            code=message.code,
            message=message.message,
        )
        refused = None if message.rid is None else self._outbox.remove(message.rid)
        if refused is None:
            return
        if refused.is_replacement or message.code in _HOPELESS:
            for held in refused.done:
                self._holdings.bury(held, now_ms)
            return
        # The broker will never accept these results. If they were only dropped, the steps would run again.
        for held in refused.done:
            failure = _sdk_failure(held, "result_refused", f"{message.code}: {message.message}")
            self._send(refused.peer, refused.batch, [(held, failure)], now_ms, is_replacement=True)

    def change_owner(
        self, message: ResultsMessage, adopted: list[HeldDelivery], peer: BrokerPeer, now_ms: float
    ) -> None:
        """Move results to the broker that now owns their deliveries. Results for the previous owner get a separate
        message."""
        items = {held.item for held in adopted}
        rest = [held for held in message.done if held.item not in items]
        if not rest:
            message.peer = peer
            return
        result_of = {(r.step_id, r.delivery): r for r in decode_results(message.body).results}
        self._outbox.remove(message.rid)
        for owner, deliveries in ((message.peer, rest), (peer, adopted)):
            pairs = [(held, result_of[held.item]) for held in deliveries]
            self._send(owner, message.batch, pairs, now_ms, message.is_replacement)

    def _send(
        self,
        peer: BrokerPeer,
        batch: HeldBatch,
        done: list[tuple[HeldDelivery, Result]],
        now_ms: float,
        is_replacement: bool = False,
    ) -> None:
        """Send one results message, or two halves if the broker does not accept its size."""
        session = peer.session or batch.session
        rid = self._rid + 1
        free, slots_free = self._credit.offer(peer, now_ms)
        message = Results(
            v=V,
            worker=self._out.worker,
            session=session,
            deployment=peer.deployment or "",
            batch_id=batch.id,
            protocol_version=V,
            rid=rid,
            n=self._out.next_n(),
            free=free,
            slots_free=slots_free,
            results=[result for _, result in done],
        )
        body = codec.encode(message)
        if len(body) > peer.bytes_max:
            if len(done) > 1:
                half = len(done) // 2
                self._send(peer, batch, done[:half], now_ms, is_replacement)
                self._send(peer, batch, done[half:], now_ms, is_replacement)
                return
            if not is_replacement:
                held, result = done[0]
                if result.metadata is not None and result.metadata.stderr is not None:
                    self._send(peer, batch, [(held, _without_stderr(result))], now_ms)
                    return
                failure = _too_large(held, len(body), peer.bytes_max)
                assert held.run is not None
                self._out.add(ResultTooLarge(held.run.step, failure))
                self._send(peer, batch, [(held, failure)], now_ms, is_replacement=True)
                return
        self._rid = rid
        deliveries = [held for held, _ in done]
        batch.unsent -= sum(held.message is None for held in deliveries)  # a replacement counts once
        kept = ResultsMessage(rid, peer, batch, session, body, deliveries, now_ms, is_replacement)
        for held in deliveries:
            held.message = kept
        self._outbox.send(kept)
        if not batch.unsent:
            self._intake.cancel_accept(peer, session, batch.id)


def without_verdict(held: HeldDelivery, result: Result) -> Result:
    """The result without a verdict on an at_most_once step: a failure after a request to stop does not prove that the
    step had no effect."""
    if not held.is_at_most_once or result.error is None:
        return result
    return msgspec.structs.replace(result, error=msgspec.structs.replace(result.error, code=OUTCOME_UNKNOWN))


def _without_stderr(result: Result) -> Result:
    """The result without its standard error, which is for people only and must not cost the outcome."""
    assert result.metadata is not None
    return msgspec.structs.replace(result, metadata=msgspec.structs.replace(result.metadata, stderr=None))


def _too_large(held: HeldDelivery, message_bytes: int, bytes_max: int) -> Result:
    text = (
        f"the output has {_size(message_bytes)}; the limit is {_size(bytes_max)}: "
        "store it elsewhere and return a reference"
    )
    return _sdk_failure(held, "too_large", text)


def _size(size_bytes: int) -> str:
    """Rounded up, so that a size above a limit also reads as one."""
    if size_bytes < MIB:
        return f"{size_bytes} bytes"
    return f"{math.ceil(size_bytes / MIB * 10) / 10:g} MiB"


def _sdk_failure(held: HeldDelivery, code: str, text: str) -> Result:
    """The result of a step that ran, but whose result cannot be delivered."""
    if held.is_at_most_once:
        error = ErrorDetail(message=f"{code}: {text}", code=OUTCOME_UNKNOWN)
    else:
        error = ErrorDetail(message=text, code=code, retryable=False)
    step_id, delivery = held.item
    return Result(step_id=step_id, delivery=delivery, status="error", error=error)
