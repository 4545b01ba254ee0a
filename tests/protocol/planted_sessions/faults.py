"""The faults, by the part of the session that they are planted in. Each is what an author of a port may write."""

from typing import Final

from .open_points import OPEN_POINTS
from .plant import Fault

LEASES: Final = "session/leases.py"
RUNS: Final = "session/runs.py"
INTAKE: Final = "session/intake.py"
REPORTING: Final = "session/reporting.py"
OUTBOX: Final = "session/outbox.py"
HOLDINGS: Final = "session/holdings.py"
CREDIT: Final = "session/credit.py"
SESSION: Final = "session/session.py"
ANNOUNCE: Final = "session/announcements.py"
OUTGOING: Final = "session/outgoing.py"
TOMBSTONES: Final = "session/tombstones.py"
ENDPOINTS: Final = "session/endpoints.py"
SLOTS: Final = "session/slots.py"
PROMISES: Final = "session/promises.py"
PROGRESS: Final = "session/progress.py"
DELIVERIES: Final = "session/deliveries.py"
CONFIG: Final = "session/config.py"
ACTIONS: Final = "actions.py"
RUN_SLOTS: Final = "runners/run_slots.py"

FAULTS: Final = (
    # -- the lease
    Fault(
        "the lease counts from the ack",
        LEASES,
        "self._extend(peer, sent_ms + peer.lease_ms * limits.LEASE_WORKER_FACTOR, now_ms)",
        "self._extend(peer, now_ms + peer.lease_ms * limits.LEASE_WORKER_FACTOR, now_ms)",
    ),
    Fault(
        "the lease counts from the welcome",
        LEASES,
        "until_ms = sent_ms + message.lease_ms * limits.LEASE_WORKER_FACTOR",
        "until_ms = now_ms + message.lease_ms * limits.LEASE_WORKER_FACTOR",
    ),
    Fault(
        "the lease is used whole after a welcome",
        LEASES,
        "until_ms = sent_ms + message.lease_ms * limits.LEASE_WORKER_FACTOR",
        "until_ms = sent_ms + message.lease_ms",
    ),
    Fault(
        "the lease is used whole after an ack",
        LEASES,
        "sent_ms + peer.lease_ms * limits.LEASE_WORKER_FACTOR, now_ms",
        "sent_ms + peer.lease_ms, now_ms",
    ),
    Fault(
        "a longer lease is kept in a new session",
        LEASES,
        "            peer.lease.until_ms = 0.0  # a restarted broker may have a shorter lease, which then applies\n",
        "            pass\n",
    ),
    Fault(
        "the lease never ends",
        LEASES,
        "            if peer.lease.until_ms and now_ms >= peer.lease.until_ms:\n",
        "            if False:\n",
    ),
    Fault(
        "the lease is not checked before a message is processed",
        SESSION,
        "        self.leases.check(now_ms)\n        if topic not in",
        "        if topic not in",
    ),
    Fault(
        "a lease may become shorter",
        LEASES,
        "        if until_ms > peer.lease.until_ms:\n",
        "        if True:\n",
    ),
    Fault(
        "an ack of another session renews the lease",
        SESSION,
        "            case _ if peer is None or peer.session != message.session or peer.epoch != message.epoch:\n",
        "            case _ if peer is None or (not isinstance(message, HeartbeatAck) and"
        " (peer.session != message.session or peer.epoch != message.epoch)):\n",
    ),
    Fault(
        "messages of every session count",
        SESSION,
        "            case _ if peer is None or peer.session != message.session or peer.epoch != message.epoch:\n",
        "            case _ if peer is None or peer.session is None:\n",
    ),
    Fault(
        "the epoch of a message is not checked",
        SESSION,
        "            case _ if peer is None or peer.session != message.session or peer.epoch != message.epoch:\n",
        "            case _ if peer is None or peer.session != message.session:\n",
    ),
    Fault(
        "a run begins after the lease",
        ACTIONS,
        "        if self.is_taken_back or now_ms >= self.lease.until_ms:\n",
        "        if self.is_taken_back:\n",
    ),
    # -- hello, welcome, reset
    Fault(
        "here of an older epoch opens a new session",
        LEASES,
        "        if message.epoch < peer.epoch:\n            return\n        if message.epoch > peer.epoch:\n",
        "        if message.epoch != peer.epoch:\n",
    ),
    Fault(
        "here of the current epoch ends the session",
        LEASES,
        "        if message.epoch > peer.epoch:\n",
        "        if message.epoch >= peer.epoch:\n",
    ),
    Fault(
        "here drops the deliveries",
        LEASES,
        "            peer.epoch = message.epoch\n            peer.session = None\n",
        "            peer.epoch = message.epoch\n            self._drop(peer, 'here', now_ms)\n",
    ),
    Fault(
        "here is not answered",
        LEASES,
        "        peer.n_after = self._out.n\n        self._announcements.request_hello(now_ms)\n",
        "        peer.n_after = self._out.n\n",
    ),
    Fault(
        "a welcome for a hello before here counts",
        LEASES,
        "        peer.deployment = message.deployment\n        peer.n_after = self._out.n\n",
        "        peer.deployment = message.deployment\n",
    ),
    Fault(
        "a welcome for a hello before the drop counts",
        LEASES,
        "        peer.lease.until_ms = 0.0\n        peer.n_after = self._out.n\n",
        "        peer.lease.until_ms = 0.0\n",
    ),
    Fault("a welcome with another number counts", LEASES, "k != peer.next or message.n", "message.n"),
    Fault(
        "a welcome of an older epoch counts",
        LEASES,
        "        if epoch < peer.epoch or until_ms <= now_ms:\n",
        "        if until_ms <= now_ms:\n",
    ),
    Fault(
        "a welcome whose lease is over counts",
        LEASES,
        "        if epoch < peer.epoch or until_ms <= now_ms:\n",
        "        if epoch < peer.epoch:\n",
    ),
    Fault(
        "a reset of an older epoch counts",
        LEASES,
        "        if message.next == peer.next and message.epoch >= peer.epoch:\n",
        "        if message.next == peer.next:\n",
    ),
    Fault(
        "a reset with another number counts",
        LEASES,
        "        if message.next == peer.next and message.epoch >= peer.epoch:\n",
        "        if message.epoch >= peer.epoch:\n",
    ),
    Fault("the number stays after a drop", LEASES, "        peer.next += 1\n", "        pass\n"),
    Fault(
        "a repeated reset is answered at once",
        LEASES,
        "            peer.drop_wait_ms = float(min(limits.DROP_WAIT_MAX_MS, max(limits.DROP_WAIT_MS, 2 * wait_ms)))\n",
        "            peer.drop_wait_ms = 0.0\n",
    ),
    Fault(
        "the pause after drops grows for ever",
        LEASES,
        "            peer.drop_wait_ms = 0.0\n        if why in _PERMANENT",
        "            pass\n        if why in _PERMANENT",
    ),
    Fault(
        "reset version is answered at once",
        LEASES,
        '_PERMANENT: Final = frozenset({"version", "unauthorized"})',
        '_PERMANENT: Final = frozenset({"never"})',
    ),
    Fault(
        "hello stops at the first welcome",
        ANNOUNCE,
        "        if peers and all(peer.session is not None",
        "        if peers and any(peer.session is not None",
    ),
    Fault(
        "hello stops while no broker is known",
        ANNOUNCE,
        "        if peers and all(peer.session is not None",
        "        if all(peer.session is not None",
    ),
    Fault(
        "hello is never resent",
        ANNOUNCE,
        "        self.hello_at_ms = now_ms + self._spread(self._hello_wait_ms, limits.HELLO_JITTER)\n",
        "        self.hello_at_ms = NEVER\n",
    ),
    Fault(
        "the pause between hellos does not grow",
        ANNOUNCE,
        "        self._hello_wait_ms = min(self._hello_wait_ms * 2, limits.HELLO_RETRY_MAX_MS)\n",
        "",
    ),
    # -- heartbeats
    Fault(
        "no heartbeat after a session has opened",
        LEASES,
        "        self._announcements.request_heartbeat(now_ms)  # carries the credit\n",
        "",
    ),
    Fault(
        "hello lacks what is held",
        ANNOUNCE,
        "            holding=self._holdings.report(now_ms),\n            heartbeat_ms",
        "            heartbeat_ms",
    ),
    Fault(
        "heartbeats lack what is held",
        ANNOUNCE,
        "            holding=self._holdings.report(now_ms),\n        )\n        self._out.send_to_all(heartbeat)",
        "        )\n        self._out.send_to_all(heartbeat)",
    ),
    Fault(
        "holding lacks what is done",
        HOLDINGS,
        "            if (state := held.reported_state) is not None\n",
        "            if (state := held.reported_state) not in (None, DONE)\n",
    ),
    Fault(
        "heartbeats lack the sessions",
        ANNOUNCE,
        "            sessions=self._brokers.sessions(),\n            free=free,\n            slots_free=slots_free,\n"
        "            holding=self._holdings.report(now_ms),\n        )\n        self._out.send_to_all(heartbeat)",
        "            free=free,\n            slots_free=slots_free,\n"
        "            holding=self._holdings.report(now_ms),\n        )\n        self._out.send_to_all(heartbeat)",
    ),
    Fault(
        "the heartbeat interval of the broker is ignored",
        ANNOUNCE,
        "for peer in self._brokers if peer.session)",
        "for peer in ())",
    ),
    Fault(
        "results repeat the number of the last message",
        OUTGOING,
        "        self.n += 1\n",
        "        self.n = max(1, self.n)\n",
    ),
    # -- receipt
    Fault(
        "steps are not accepted again",
        INTAKE,
        "        elif held.state is not DONE:\n            return True\n",
        "        elif held.state is not DONE:\n            return False\n",
    ),
    Fault(
        "results are not sent again for repeated steps",
        INTAKE,
        "        elif held.message is not None:\n            self._outbox.hasten(held.message, now_ms)\n",
        "        elif held.message is not None:\n            pass\n",
    ),
    Fault(
        "a delivery that is over starts again",
        INTAKE,
        "            if item in tombstones or batch.number in range(peer.floor + 1):\n",
        "            if batch.number in range(peer.floor + 1):\n",
    ),
    Fault(
        "a batch whose tombstones are gone starts again",
        INTAKE,
        "            if item in tombstones or batch.number in range(peer.floor + 1):\n",
        "            if item in tombstones:\n",
    ),
    Fault(
        "no step is ever refused as busy",
        INTAKE,
        "            elif places <= 0 or holdings",
        "            elif holdings",
    ),
    Fault(
        "steps are accepted while the worker drains",
        INTAKE,
        '            elif self._credit.is_draining:\n                code = "draining"\n',
        "",
    ),
    Fault(
        "steps of an unknown handler are refused as busy",
        INTAKE,
        '                code = "unknown_handler"\n',
        '                code = "busy"\n',
    ),
    Fault(
        "a refused step leaves no tombstone",
        INTAKE,
        '            if code != "stale":\n                tombstones',
        "            if False:\n                tombstones",
    ),
    Fault(
        "a step of another broker is accepted again",
        INTAKE,
        "        if held.peer is not peer:\n",
        "        if False:\n",
    ),
    Fault(
        "an unreadable message gets no refusal",
        INTAKE,
        "            self._refuse_unread(peer, remains.session, remains.batch_id, items, code, now_ms)\n",
        "            pass\n",
    ),
    Fault(
        "a message that is too large is read",
        SESSION,
        "        if len(body) > self._bytes_max:\n",
        "        if False:\n",
    ),
    Fault(
        "a message that is too large is refused as bad",
        SESSION,
        'on_unreadable(body, "too_large"',
        'on_unreadable(body, "bad_message"',
    ),
    Fault(
        "steps of an unknown protocol version run",
        INTAKE,
        '        if message.protocol_version.partition(".")[0] != V.partition(".")[0]:\n',
        "        if False:\n",
    ),
    Fault(
        "a step that was refused unread may start later",
        HOLDINGS,
        "        self.tombstones.add([item for item in items if item not in self._held], peer, batch, now_ms)\n",
        "        pass\n",
    ),
    Fault(
        "an accept is cancelled by results of another broker",
        REPORTING,
        "self._intake.cancel_accept(peer, session, batch.id)",
        "[self._intake.cancel_accept(each, session, batch.id) for each in list(self._credit._brokers)]",
    ),
    Fault(
        "a replacement of a refused result cancels the accept",
        REPORTING,
        "        batch.unsent -= sum(held.message is None for held in deliveries)  # a replacement counts once\n",
        "        batch.unsent -= len(deliveries)\n",
    ),
    Fault("an item is refused twice in one message", INTAKE, "parts(list(dict.fromkeys(items)))", "parts(items)"),
    Fault(
        "an item is adopted twice in one message",
        SESSION,
        "for item in dict.fromkeys(message.items):",
        "for item in message.items:",
    ),
    # -- runs
    Fault(
        "a go for a step that does not ask starts it",
        RUNS,
        "            held = self._slots.asking.get(item)\n            if held is not None and held.peer is peer:\n"
        "                del self._slots.asking[item]\n",
        "            held = self._holdings.get(item)\n            if held is not None and held.peer is peer"
        " and held.state in ('queued', 'asking'):\n                self._slots.asking.pop(item, None)\n",
    ),
    Fault(
        "a go of another broker counts",
        RUNS,
        "            if held is not None and held.peer is peer:\n                del",
        "            if held is not None:\n                del",
    ),
    Fault(
        "at_most_once steps start without permission",
        RUNS,
        "            if held.is_at_most_once:\n",
        "            if False:\n",
    ),
    Fault(
        "start is not resent",
        RUNS,
        "        self.ask_at_ms = min((held.ask_at_ms for held in asking.values()), default=NEVER)\n",
        "        self.ask_at_ms = NEVER\n",
    ),
    Fault("start waits for its timer in a new session", LEASES, "        self._runs.hasten(peer, now_ms)\n", ""),
    Fault(
        "a cancel leaves waiting steps in the queue",
        SESSION,
        "                if held.withdraw():\n                    not_started.append(held)\n",
        "                if held.state == 'queued':\n                    pass\n"
        "                elif held.withdraw():\n                    not_started.append(held)\n",
    ),
    Fault(
        "a cancel of an unknown delivery is forgotten",
        SESSION,
        "            if held is None:\n                self.holdings.tombstones.disown(item, peer, now_ms)\n"
        "            elif held.peer",
        "            if held is None:\n                pass\n            elif held.peer",
    ),
    Fault(
        "a cancelled step is not given back",
        SESSION,
        '        self.intake.give_back(not_started, "stale", now_ms)\n',
        "        for held in not_started:\n            self.holdings.bury(held, now_ms)\n",
    ),
    Fault(
        "a cancel of another broker counts",
        SESSION,
        "elif held.peer is peer and held.state is not DONE:",
        "elif held.state is not DONE:",
    ),
    Fault(
        "a run is asked to stop at each cancel",
        RUNS,
        "        if not held.is_stopping:\n",
        "        if True:\n",
    ),
    Fault(
        "a run is not asked to stop",
        RUNS,
        "            self._out.add(CancelRun(held.item, reason))\n",
        "            pass\n",
    ),
    Fault(
        "timeouts are not enforced", RUNS, '                self.interrupt(held, "timeout")\n', "                pass\n"
    ),
    Fault(
        "the timeout counts from the receipt",
        RUNS,
        "        held.run = Run(held.item, step, held.offer, held.peer.lease, timeout_ms, ends_ms, may_need_opening)\n",
        "        held.run = Run(held.item, step, held.offer, held.peer.lease, NEVER,"
        " min(ends_ms, held.received_ms + timeout_ms))\n",
    ),
    Fault(
        "the deadline of a step is ignored",
        RUNS,
        "NEVER if deadline_ms is None else held.received_ms + deadline_ms",
        "NEVER",
    ),
    Fault(
        "the deadline counts from the start",
        RUNS,
        "NEVER if deadline_ms is None else held.received_ms + deadline_ms",
        "NEVER if deadline_ms is None else now_ms + deadline_ms",
    ),
    Fault(
        "the timeout of the offer is ignored",
        RUNS,
        "        if own_ms is not None and own_ms < timeout_ms:\n",
        "        if False:\n",
    ),
    Fault("a timeout of 0 ends the run at once", RUNS, "step.metadata.timeout_ms or NEVER", "step.metadata.timeout_ms"),
    Fault(
        "a failure after a stop is a verdict",
        REPORTING,
        "    if not held.is_at_most_once or result.error is None:\n        return result\n",
        "    return result\n",
    ),
    Fault(
        "a failure after a lost lease is a verdict",
        RUNS,
        "        held.is_interrupted = True\n",
        '        held.is_interrupted = reason != "lease_lost"\n',
    ),
    Fault("the slots are not counted", RUN_SLOTS, "                self._free -= 1\n", "                pass\n"),
    Fault(
        "the concurrency of a handler is ignored by the run slots",
        RUN_SLOTS,
        "            if self._places[offer] > 0:\n",
        "            if True:\n",
    ),
    Fault(
        "a released place of a handler starts nothing",
        RUN_SLOTS,
        "                if self._blocked[offer]:\n",
        "                if False:\n",
    ),
    Fault(
        "steps are handed over ahead while one asks",
        SLOTS,
        "        must_have_slot = self.asking or queue[0].is_at_most_once\n",
        "        must_have_slot = queue[0].is_at_most_once\n",
    ),
    # -- results
    Fault(
        "results are forgotten at a drop",
        LEASES,
        "        session, peer.session = peer.session, None\n",
        "        self._outbox.discard(peer)\n        session, peer.session = peer.session, None\n",
    ),
    Fault(
        "results are not resent",
        OUTBOX,
        "            if message.at_ms <= now_ms:\n",
        "            if False:\n",
    ),
    Fault(
        "results never go to every broker",
        OUTBOX,
        "                if message.tries >= limits.RESULTS_BROADCAST_FROM_TRY:\n",
        "                if False:\n",
    ),
    Fault(
        "results go to every broker at the second try",
        OUTBOX,
        "message.tries >= limits.RESULTS_BROADCAST_FROM_TRY",
        "message.tries >= 2",
    ),
    Fault(
        "results wait for their timer in a new session", LEASES, "        self._outbox.hasten_all(peer, now_ms)\n", ""
    ),
    Fault(
        "resent results name the old session",
        OUTBOX,
        "        if session is None or session == message.session:\n",
        "        if True:\n",
    ),
    Fault(
        "results are acknowledged for ever",
        REPORTING,
        "                self._holdings.bury_acknowledged(acked, now_ms)\n",
        "                for held in acked.done:\n                    held.message = None\n",
    ),
    Fault(
        "an ack has no effect",
        REPORTING,
        "            acked = self._outbox.remove(rid)\n",
        "            acked = None\n",
    ),
    Fault(
        "refused results are only dropped",
        REPORTING,
        "        if refused.is_replacement or message.code in _HOPELESS:\n",
        "        if True:\n",
    ),
    Fault(
        "a refused replacement is replaced again",
        REPORTING,
        "        if refused.is_replacement or message.code in _HOPELESS:\n",
        "        if message.code in _HOPELESS:\n",
    ),
    Fault(
        "two batches share a results message",
        REPORTING,
        "        for batch in ready:\n            done = [pair for pair in batch.ready if pair[0].state is DONE]\n"
        "            batch.ready = []\n",
        "        batches = list(ready)\n        for batch in batches[:1]:\n"
        "            done = [pair for one in batches for pair in one.ready if pair[0].state is DONE]\n"
        "            for one in batches:\n                one.ready = []\n",
    ),
    Fault(
        "a result that is too large is sent",
        REPORTING,
        "        if len(body) > peer.bytes_max:\n",
        "        if False:\n",
    ),
    Fault(
        "results of several steps that are too large are not split",
        REPORTING,
        "            if len(done) > 1:\n",
        "            if False and len(done) > 1:\n",
    ),
    Fault(
        "a large standard error costs the outcome",
        REPORTING,
        "                if result.metadata is not None and result.metadata.stderr is not None:\n",
        "                if False:\n",
    ),
    Fault(
        "a result that is too large for an at_most_once step is a verdict",
        REPORTING,
        "    if held.is_at_most_once:\n        error =",
        "    if False:\n        error =",
    ),
    Fault(
        "a result waits for others of its batch for 100 ms", REPORTING, "HOLD_MS: Final = 1.0", "HOLD_MS: Final = 100.0"
    ),
    # -- adoption, deployments, tombstones
    Fault(
        "an adopted unknown delivery may start later",
        SESSION,
        "                self.holdings.tombstones.disown(item, peer, now_ms)\n                answers.append",
        "                answers.append",
    ),
    Fault(
        "an adoption leaves the results with the old broker",
        SESSION,
        "            self.reporting.change_owner(results_message, deliveries, peer, now_ms)\n",
        "            pass\n",
    ),
    Fault(
        "an adoption leaves the delivery with the old broker",
        SESSION,
        "            self.holdings.move(held, peer)\n",
        "",
    ),
    Fault(
        "an adopted run keeps the lease of its old broker",
        HOLDINGS,
        "            held.run.lease = peer.lease  # a run that has not begun now needs the lease of the new owner\n",
        "            pass\n",
    ),
    Fault(
        "an adoption does not resend the results",
        SESSION,
        "                self.outbox.hasten(held.message, now_ms)\n",
        "                pass\n",
    ),
    Fault(
        "adopted lies about the state",
        SESSION,
        "held.reported_state, held.age_ms(now_ms)))",
        '"running", held.age_ms(now_ms)))',
    ),
    Fault(
        "another deployment keeps the results",
        LEASES,
        "        discarded = self._outbox.discard(peer)\n",
        "        discarded = 0\n",
    ),
    Fault(
        "another deployment keeps the tombstones",
        LEASES,
        "        self._holdings.tombstones.forget_broker(peer)\n",
        "",
    ),
    Fault(
        "another deployment is not noticed in a welcome",
        LEASES,
        "        if peer.deployment not in (None, message.deployment):\n"
        "            self._replace(peer, message.deployment, message.epoch, now_ms)\n            return False\n",
        "",
    ),
    Fault(
        "results of a replaced database are reported",
        LEASES,
        "                self._holdings.orphan(held, now_ms)\n",
        "                pass\n",
    ),
    Fault("tombstones are kept for a minute", TOMBSTONES, "now_ms - limits.TOMBSTONE_MS", "now_ms - 60_000"),
    Fault(
        "a dropped session keeps waiting steps",
        LEASES,
        "            if held.withdraw():\n                self._holdings.bury(held, now_ms)\n"
        "                dropped += 1\n",
        "            if held.state == 'queued':\n                dropped += 1\n",
    ),
    Fault(
        "a lost lease stops runs",
        RUNS,
        '            held.is_stopping = reason != "lease_lost"\n'
        "            self._out.add(CancelRun(held.item, reason))\n",
        "            held.is_stopping = True\n"
        '            self._out.add(CancelRun(held.item, "timeout" if reason == "lease_lost" else reason))\n',
    ),
    # -- credit
    Fault(
        "credit counts what is done",
        HOLDINGS,
        "        self.pace.count_end(now_ms)\n        self._lighten(held, now_ms)\n",
        "        self.pace.count_end(now_ms)\n",
    ),
    Fault(
        "credit ignores what is held",
        CREDIT,
        "            return max(0, capacity - load), max(0, self._slots - load), False\n",
        "            return capacity, self._slots, False\n",
    ),
    Fault(
        "each of several brokers gets the whole credit",
        CREDIT,
        "        left = min(self._share_left(capacity, peer, now_ms), capacity - load)\n",
        "        left = capacity - load\n",
    ),
    Fault(
        "promises to other brokers are ignored",
        CREDIT,
        "        free = max(0, min(left, capacity - load - promised))\n",
        "        free = max(0, left)\n",
    ),
    Fault(
        "promises are never used up",
        PROMISES,
        "            entry[1] = max(0, entry[1] - steps)\n",
        "            pass\n",
    ),
    Fault("promises never end", PROMISES, "[entry for entry in self._entries if entry[0] >= n]", "self._entries"),
    Fault("a full runner offers credit", CREDIT, " or self.is_full or", " or"),
    Fault("quiet of the broker has no effect", CREDIT, "or self.is_full or peer.is_quiet", "or self.is_full"),
    Fault(
        "quiet of the broker lasts for ever",
        LEASES,
        "        if message.quiet != peer.is_quiet:\n",
        "        if message.quiet and not peer.is_quiet:\n",
    ),
    Fault("quiet lasts into the next session", LEASES, "        peer.is_quiet = False\n", ""),
    Fault(
        "quiet of the program refuses steps",
        INTAKE,
        "            elif self._credit.is_draining:\n",
        "            elif self._credit.is_draining or self._credit.is_quiet:\n",
    ),
    Fault(
        "steps that no longer fit are not returned",
        SESSION,
        '            self.intake.give_back(self.holdings.withdraw_newest(count, peers), "busy", now_ms)\n',
        "            pass\n",
    ),
    Fault(
        "the oldest steps are returned",
        HOLDINGS,
        "for held in reversed(self._held.values()):",
        "for held in list(self._held.values()):",
    ),
    Fault(
        "a declared prefetch is ignored",
        CREDIT,
        "return max(self._prefetch or 0, self.ahead(now_ms))",
        "return self.ahead(now_ms)",
    ),
    Fault(
        "the room does not follow the pace",
        CREDIT,
        "return max(self._prefetch or 0, self.ahead(now_ms))",
        "return 10 if self._prefetch is None else self._prefetch",
    ),
    # -- the end
    Fault(
        "quit of the broker is ignored",
        SESSION,
        "                if message.quit:\n                    self.drain(now_ms)\n",
        "",
    ),
    Fault(
        "a drain ends before the ack",
        SESSION,
        "        return self.credit.is_draining and not self.holdings and not self._has_quit\n",
        "        return self.credit.is_draining and not self.holdings.load and not self._has_quit\n",
    ),
    Fault(
        "a drain ends with a run",
        SESSION,
        "        return self.credit.is_draining and not self.holdings and not self._has_quit\n",
        "        return self.credit.is_draining and not self._has_quit\n",
    ),
    Fault(
        "a drain starts what waits",
        SESSION,
        '        self.intake.give_back(self.holdings.withdraw(), "draining", now_ms)\n',
        "",
    ),
    Fault(
        "a drain offers credit", CREDIT, "is_closed = self.is_draining or self.is_quiet", "is_closed = self.is_quiet"
    ),
    Fault(
        "a drain sends no bye",
        ANNOUNCE,
        "        if self._credit.is_draining:\n            self._out.send_to_all(Bye(",
        "        if False:\n            self._out.send_to_all(Bye(",
    ),
    Fault("a drained worker never quits", SESSION, "            self.out.add(Quit())\n", "            pass\n"),
    Fault(
        "the end of the drain stops nothing",
        SESSION,
        '        return self.runs.interrupt_all("shutdown")\n',
        "        return 0\n",
    ),
    # -- links
    Fault(
        "silent links are never rebuilt",
        ENDPOINTS,
        "                    self._out.add(Rebuild(link))\n",
        "                    pass\n",
    ),
    Fault(
        "links of brokers that answer are rebuilt",
        ENDPOINTS,
        "if max(answered_ms, self._connected_ms[link]) <= now_ms - silent_ms",
        "if self._connected_ms[link] <= now_ms - silent_ms",
    ),
    Fault(
        "listed brokers are not connected",
        ENDPOINTS,
        "                self._out.add(Connect(link, entry.server_key))\n",
        "                pass\n",
    ),
    Fault(
        "the new address of a listed broker is not used",
        ENDPOINTS,
        "            self._moved[entry.broker] = link, entry.server_key\n",
        "            pass\n",
    ),
    Fault(
        "the new address of a broker that answers is used at once",
        ENDPOINTS,
        "            self._moved[entry.broker] = link, entry.server_key\n",
        "            self._moved[entry.broker] = link, entry.server_key\n"
        "            self._connected_ms[connected] = -1e9\n",
    ),
    Fault(
        "known brokers are connected again",
        ENDPOINTS,
        "if entry.broker not in self._brokers and entry.broker not in known and not unnamed:",
        "if True:",
    ),
    Fault(
        "a list without keys loses the server key", ENDPOINTS, "Connect(link, entry.server_key)", "Connect(link, None)"
    ),
    Fault(
        "a changed server key is not used",
        ENDPOINTS,
        "            self._connect_with(link, keys[0], now_ms)\n",
        "            pass\n",
    ),
    Fault(
        "a key that will replace the current one is used at once",
        ENDPOINTS,
        "before[0] != keys[0] and self._key.get(link) != keys[0]",
        "before != keys",
    ),
    Fault(
        "a silent broker is tried with its current key only",
        ENDPOINTS,
        "(keys.index(used) + 1) % len(keys)",
        "0",
    ),
    Fault(
        "brokers that need keys are connected without them",
        ENDPOINTS,
        "                if entry.server_key is not None and not self._has_curve:\n",
        "                if False:\n",
    ),
    Fault(
        "brokers that are no longer listed stay connected",
        ENDPOINTS,
        "            elif now_ms - listed_ms >= limits.UNLISTED_MS",
        "            elif False",
    ),
    Fault("progress is sent at once each time", PROGRESS, "max(now_ms, self._sent_ms + PROGRESS_EVERY_MS)", "now_ms"),
    Fault("progress of ended runs is sent", SESSION, "            self.progress.forget(held)\n", "            pass\n"),
    *OPEN_POINTS,
)
