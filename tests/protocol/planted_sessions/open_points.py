"""Faults that an author made, or could make, where the documents were silent. The documents have an answer by now."""

from typing import Final

from .plant import Fault

LEASES: Final = "session/leases.py"
REPORTING: Final = "session/reporting.py"
RUNS: Final = "session/runs.py"
INTAKE: Final = "session/intake.py"
CREDIT: Final = "session/credit.py"
SESSION: Final = "session/session.py"

OPEN_POINTS: Final = (
    Fault(
        "results wait although none is expected",
        REPORTING,
        "            or self._holdings.pace.steps_in(HOLD_MS, now_ms) < 1  # none is expected in time\n",
        "",
    ),
    Fault(
        "quiet of an ack that answers an older heartbeat is ignored",
        LEASES,
        "        if message.quiet != peer.is_quiet:\n",
        "        if message.quiet != peer.is_quiet and message.n == self._out.n:\n",
    ),
    Fault(
        "a repeated welcome lowers no promise",
        LEASES,
        "        peer.promises.acknowledge(message.n)\n        if is_new:\n",
        "        if is_new:\n            peer.promises.acknowledge(message.n)\n",
    ),
    Fault(
        "a repeated welcome causes a heartbeat",
        LEASES,
        "        peer.promises.acknowledge(message.n)\n        if is_new:\n",
        "        if peer.promises.acknowledge(message.n) and self._credit.moves(peer):\n"
        "            self._announcements.move_credit(now_ms)\n        if is_new:\n",
    ),
    Fault(
        "here of another deployment is answered at once",
        LEASES,
        "            self._replace(peer, message.deployment, message.epoch, now_ms)\n            return\n",
        "            self._replace(peer, message.deployment, message.epoch, now_ms)\n"
        "            self._announcements.request_hello(now_ms)\n            return\n",
    ),
    Fault(
        "a welcome that does not count replaces the deployment",
        LEASES,
        "        if epoch != message.epoch or k != peer.next or message.n <= peer.n_after or sent_ms is None:\n",
        "        if peer.deployment not in (None, message.deployment):\n"
        "            self._replace(peer, message.deployment, message.epoch, now_ms)\n"
        "            return False\n"
        "        if epoch != message.epoch or k != peer.next or message.n <= peer.n_after or sent_ms is None:\n",
    ),
    Fault(
        "a welcome that does not count keeps the endpoints",
        LEASES,
        "message.n <= peer.n_after or sent_ms is None:\n",
        "message.n <= peer.n_after or sent_ms is None:\n            peer.answered_ms = now_ms\n",
    ),
    Fault(
        "a drain waits for the runs of a replaced database",
        SESSION,
        "return self.credit.is_draining and not self.holdings and",
        "return self.credit.is_draining and not self.holdings and not self.holdings._orphans and",
    ),
    Fault(
        "an ack of another broker is ignored",
        REPORTING,
        "            acked = self._outbox.remove(rid)\n",
        "            owners = {one.rid: one.peer.id for one in self._outbox}\n"
        "            acked = self._outbox.remove(rid) if owners.get(rid) == message.broker else None\n",
    ),
    Fault(
        "lease_lost is reported once",
        RUNS,
        "        held.is_interrupted = True\n        if not held.is_stopping:\n",
        "        is_known, held.is_interrupted = held.is_interrupted, True\n"
        "        if not held.is_stopping and not (is_known and reason == 'lease_lost'):\n",
    ),
    Fault(
        "a worker without room keeps steps that wait",
        CREDIT,
        "        if load <= tolerated:\n",
        "        if load <= tolerated or self._prefetch == 0:\n",
    ),
    Fault(
        "the accept of a repeated batch is delayed",
        INTAKE,
        "            at_ms = now_ms if is_repeated else now_ms + self._accept_delay_ms\n",
        "            at_ms = now_ms + self._accept_delay_ms\n",
    ),
    Fault(
        "an id out of range is refused",
        INTAKE,
        "    step_id: Id\n    delivery: Id\n",
        "    step_id: int\n    delivery: int\n",
    ),
)
