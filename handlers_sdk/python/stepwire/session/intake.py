"""`steps` messages, and their answers. A repeated `steps` message is answered again, or the broker would resend it
forever."""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec
from msgspec import Struct
from stepwire_protocol.messages import Accept, Id, Item, Refuse, RefuseCode, Steps

from stepwire.actions import NEVER

from .brokers import BrokerPeer, Brokers
from .config import Offers
from .credit import Credit
from .deliveries import DONE, HeldBatch, HeldDelivery
from .holdings import HeldDeliveries
from .outbox import ResultsOutbox
from .outgoing import Outgoing, V, parts

_DOLLAR: Final = 0x24
_BACKSLASH: Final = 0x5C


class Intake:
    """Receives steps, and sends `accept` and `refuse`."""

    def __init__(
        self,
        offers: Offers,
        accept_delay_ms: int,
        brokers: Brokers,
        holdings: HeldDeliveries,
        credit: Credit,
        outbox: ResultsOutbox,
        out: Outgoing,
    ) -> None:
        self.accept_at_ms = NEVER
        self._offers = offers
        self._accept_delay_ms = accept_delay_ms
        self._brokers = brokers
        self._holdings = holdings
        self._credit = credit
        self._outbox = outbox
        self._out = out
        # When to accept a batch. Two brokers may have sessions, and batches, of the same name.
        self._unaccepted: dict[tuple[BrokerPeer, str, str], float] = {}

    def on_steps(self, peer: BrokerPeer, message: Steps, body: bytes, now_ms: float) -> None:
        """`body`: the bytes of the message."""
        peer.promises.use(len(message.steps))
        if message.protocol_version.partition(".")[0] != V.partition(".")[0]:
            items = [(step.step_id, step.delivery) for step in message.steps]
            self._refuse_unread(peer, message.session, message.batch_id, items, "bad_message", now_ms)
            return
        batch = HeldBatch(message.batch_id, message.session, len(message.steps), _may_need_opening(body))
        self._credit.note_size(len(body) / max(1, len(message.steps)))
        refused: dict[RefuseCode, list[Item]] = {}
        is_accepted = is_repeated = False
        holdings, tombstones = self._holdings, self._holdings.tombstones
        places = self._credit.places()
        peer.steps_ms = now_ms
        for step in message.steps:
            item = (step.step_id, step.delivery)
            code: RefuseCode
            if (held := holdings.get(item)) is not None:
                is_repeated |= self._answer_again(peer, held, refused, now_ms)
                continue
            if item in tombstones or batch.number in range(peer.floor + 1):
                code = "stale"
            elif (offer := self._offers.find(step.handler_class)) is None:
                code = "unknown_handler"
            elif self._credit.is_draining:
                code = "draining"
            elif places <= 0 or holdings.is_orphan(item):
                code = "busy"
            else:
                holdings.add(HeldDelivery(item, step, peer, batch, offer, now_ms))
                is_accepted = True
                places -= 1
                continue
            refused.setdefault(code, []).append(item)
            if code != "stale":
                tombstones.add([item], peer, batch, now_ms)
        if is_accepted or is_repeated:
            at_ms = now_ms if is_repeated else now_ms + self._accept_delay_ms
            self._unaccepted[peer, message.session, message.batch_id] = at_ms
            self.accept_at_ms = min(self.accept_at_ms, at_ms)
        for code, items in refused.items():
            self.refuse(peer, message.batch_id, items, code, now_ms)

    def cancel_accept(self, peer: BrokerPeer, session: str, batch_id: str) -> None:
        """Send no accept for this batch, because its results were sent and are an answer, too."""
        self._unaccepted.pop((peer, session, batch_id), None)

    def accept_due(self, now_ms: float) -> None:
        unaccepted = self._unaccepted
        at_ms = NEVER
        for key, due_ms in list(unaccepted.items()):
            if due_ms > now_ms:
                at_ms = min(at_ms, due_ms)
                continue
            del unaccepted[key]
            peer, session, batch_id = key
            if peer.session == session:
                free, slots_free = self._credit.offer(peer, now_ms)
                accept = Accept(
                    v=V,
                    worker=self._out.worker,
                    session=session,
                    batch_id=batch_id,
                    free=free,
                    slots_free=slots_free,
                )
                self._out.send_to(peer, accept)
        self.accept_at_ms = at_ms

    def give_back(self, withdrawn: Iterable[HeldDelivery], code: RefuseCode, now_ms: float) -> None:
        """End these deliveries, whose runs have not begun and never will, and return the steps to their brokers."""
        by_batch: dict[tuple[BrokerPeer, str], list[Item]] = {}
        for held in withdrawn:
            by_batch.setdefault((held.peer, held.batch.id), []).append(held.item)
            self._holdings.bury(held, now_ms)
        for (peer, batch_id), items in by_batch.items():
            self.refuse(peer, batch_id, items, code, now_ms, is_return=True)

    def refuse(
        self,
        peer: BrokerPeer,
        batch_id: str,
        items: list[Item],
        code: RefuseCode,
        now_ms: float,
        *,
        is_return: bool = False,
    ) -> None:
        """Refuse these items. `is_return`: they were accepted before."""
        if peer.session is None:
            return
        free, slots_free = self._credit.offer(peer, now_ms)
        for part in parts(list(dict.fromkeys(items))):  # a broker may list an item twice, a worker may not
            refuse = Refuse(
                v=V,
                worker=self._out.worker,
                session=peer.session,
                batch_id=batch_id,
                items=part,
                code=code,
                free=free,
                slots_free=slots_free,
            )
            self._out.send_to(peer, refuse)
        if code != "stale":
            # Returns keep the queues short, and many may be sent in a second: no operator has to act.
            level: Literal["debug", "info", "warning"] = (
                "debug" if is_return else "info" if code == "draining" else "warning"
            )
            self._out.log(level, "steps_refused", broker=peer.id, batch_id=batch_id, code=code, steps=len(items))

    def on_unreadable(self, body: bytes, code: Literal["bad_message", "too_large"], why: str, now_ms: float) -> None:
        """Refuse the steps of a message that cannot be read, or its broker would resend it forever."""
        self._out.log("error", "message_unreadable", code=code, why=why)
        try:
            remains = _decode_remains(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        peer = self._brokers.get(remains.broker)
        if (
            remains.type == "steps"
            and peer is not None
            and peer.session == remains.session
            and remains.batch_id
            and remains.steps
        ):
            items = [(step.step_id, step.delivery) for step in remains.steps]
            self._refuse_unread(peer, remains.session, remains.batch_id, items, code, now_ms)

    def _answer_again(
        self, peer: BrokerPeer, held: HeldDelivery, refused: dict[RefuseCode, list[Item]], now_ms: float
    ) -> bool:
        """Answer a delivery that is held already. True: its batch is accepted again."""
        if held.peer is not peer:
            refused.setdefault("stale", []).append(held.item)  # another broker has adopted the delivery meanwhile
        elif held.message is not None:
            self._outbox.hasten(held.message, now_ms)
        elif held.state is not DONE:
            return True
        return False

    def _refuse_unread(
        self, peer: BrokerPeer, session: str, batch_id: str, items: list[Item], code: RefuseCode, now_ms: float
    ) -> None:
        self._holdings.bury_unread(peer, HeldBatch(batch_id, session, len(items)), items, now_ms)
        self.refuse(peer, batch_id, items, code, now_ms)


def _may_need_opening(body: bytes) -> bool:
    """False if certainly no step of this message names a secret or is sealed: it has no `$`, not even as an escape.

    It is faster to search for one byte than for several. In nearly every message, one byte is enough.
    """
    return _DOLLAR in body or (_BACKSLASH in body and b"\\u00" in body)


class _StepRemains(Struct):
    step_id: Id
    delivery: Id


class _Remains(Struct):
    """The members of a `steps` message that a refusal needs."""

    type: str
    broker: str = ""
    session: str = ""
    batch_id: str = ""
    steps: list[_StepRemains] = []


_decode_remains: Final = msgspec.json.Decoder(_Remains).decode
