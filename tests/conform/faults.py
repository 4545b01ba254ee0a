"""The planted faults: each is a small variation of the Python worker, with the case that names it.

`arrival:` followed by words means that the worker cannot be graded at all, and that the sentence contains these words.
"""

import signal
import time
from typing import Final, NamedTuple

import stepwire.environment
import stepwire.handler
import stepwire.identity
from stepwire.actions import NEVER
from stepwire.runners.run_slots import RunSlots
from stepwire.session import session as session_module
from stepwire.session.announcements import Announcements
from stepwire.session.credit import Credit
from stepwire.session.deliveries import HeldDelivery
from stepwire.session.endpoints import BrokerLinks
from stepwire.session.holdings import HeldDeliveries
from stepwire.session.intake import Intake
from stepwire.session.leases import Leases
from stepwire.session.outbox import ResultsOutbox
from stepwire.session.progress import ProgressReports
from stepwire.session.reporting import ResultsReporting
from stepwire.session.runs import Runs
from stepwire.session.slots import Slots
from stepwire.worker.socket_thread import SocketThread
from stepwire.worker.sockets import WorkerSockets

from .edge_faults import EDGE_FAULTS
from .patches import (
    Patch,
    bodies_in,
    both,
    edit,
    error_out,
    out,
    put,
    received,
    steps_in,
)
from .planting import (
    after,
    encodes_badly,
    ends_at_malformed,
    environ,
    error_without,
    first_endpoint_only,
    handlers_on_the_socket_thread,
    integers,
    member,
    merged,
    nothing,
    on_term,
    one_frame_for_each_wake,
    options,
    process,
    run_slots,
    strict,
    topics,
    two_frames,
    without,
    without_member,
)

Session = session_module.Session
AS_TIMEOUT: Final = "held.received_ms + timeout_ms"


class Fault(NamedTuple):
    """One planted fault."""

    case: str
    patch: Patch


FAULTS: Final[dict[str, Fault]] = {
    **{name: Fault(case, patch) for name, (case, patch) in EDGE_FAULTS.items()},
    # -- the lease
    "lease_from_the_receipt_of_the_ack": Fault(
        "lease.from_sending", edit(Leases, "on_heartbeat_ack", "peer, sent_ms + ", "peer, now_ms + ")
    ),
    "lease_renewed_by_any_number": Fault(
        "lease.unsent_number",
        edit(Leases, "on_heartbeat_ack", "sent_ms = self._out.sent_ms(message.n)", "sent_ms = now_ms"),
    ),
    "lease_never_checked": Fault("lease.ends", put(Leases, "check", nothing)),
    "lease_kept_over_a_new_session": Fault(
        "lease.shorter", edit(Leases, "on_welcome", "peer.lease.until_ms = 0.0", "pass")
    ),
    "messages_of_any_session": Fault(
        "lease.other_session", edit(Session, "_dispatch", "peer.session != message.session or ", "")
    ),
    "steps_of_any_session": Fault(
        "malformed.other_session", edit(Session, "_dispatch", "peer.session != message.session or ", "")
    ),
    "go_of_any_session": Fault(
        "at_most_once.other_session", edit(Session, "_dispatch", "peer.session != message.session or ", "")
    ),
    "stopped_process_obeys_first": Fault(
        "hostile.stopped",
        both(
            put(Leases, "check", nothing),
            edit(session_module.Session, "receive", "self.leases.check(now_ms)", "pass"),
        ),
    ),
    # -- hello, welcome, here, reset
    "hello_once": Fault(
        "hello.resent",
        edit(Announcements, "hello", "self._spread(self._hello_wait_ms, limits.HELLO_JITTER)", "3600000.0"),
    ),
    "hello_for_ever": Fault("hello.ends", put(Announcements, "stop_hello_if_welcomed", nothing)),
    "hello_without_a_pause": Fault(
        "hello.slower", edit(Announcements, "hello", "self._spread(self._hello_wait_ms, limits.HELLO_JITTER)", "100.0")
    ),
    "hello_without_holding": Fault("reset.holding", without_member("hello", "holding")),
    "here_ignored": Fault("hello.here", put(Leases, "on_here", nothing)),
    "here_of_an_older_epoch": Fault(
        "restart.older_here", edit(Leases, "on_here", "if message.epoch < peer.epoch:", "if False:")
    ),
    "here_is_a_drop": Fault(
        "restart.keeps", edit(Leases, "on_here", "peer.session = None", "self._drop(peer, 'expired', now_ms)")
    ),
    "reset_ignored": Fault("reset.drops", put(Leases, "on_reset", nothing)),
    "reset_of_an_older_epoch": Fault(
        "reset.older_epoch", edit(Leases, "on_reset", " and message.epoch >= peer.epoch", "")
    ),
    "reset_of_another_number": Fault(
        "reset.other_number", edit(Leases, "on_reset", "message.next == peer.next and ", "")
    ),
    "reset_answered_at_once_for_ever": Fault(
        "reset.pauses",
        both(
            edit(Leases, "_drop", "self._request_hello(peer, session, why, now_ms)", "pass"),
            after(Leases, "on_reset", lambda leases: setattr(leases._announcements, "hello_at_ms", 0.0)),
        ),
    ),
    "welcome_of_another_number": Fault("hello.another_number", edit(Leases, "on_welcome", "k != peer.next or ", "")),
    "welcome_for_an_old_hello": Fault(
        "hello.old_welcome", edit(Leases, "on_welcome", "message.n <= peer.n_after or ", "")
    ),
    "heartbeats_at_its_own_interval": Fault(
        "heartbeat.interval", put(Announcements, "_heartbeat_every_ms", lambda self: 2000.0)
    ),
    "heartbeat_without_sessions": Fault("heartbeat.sessions", without_member("heartbeat", "sessions")),
    "heartbeat_without_holding": Fault("heartbeat.holding", without_member("heartbeat", "holding")),
    "done_left_out_of_holding": Fault(
        "heartbeat.done", edit(HeldDeliveries, "report", "is not None", "is not None and state != 'done'")
    ),
    "one_n_for_all": Fault("heartbeat.interval", member("heartbeat", n=1)),
    "age_from_the_receipt": Fault(
        "timeout.age",
        edit(
            HeldDelivery,
            "age_ms",
            "started_ms = None if self.run is None else self.run.started_ms",
            "started_ms = self.received_ms",
        ),
    ),
    # -- who it is
    "id_without_its_digits": Fault(
        "arrival:16 hexadecimal digits", put(stepwire.identity, "new_worker_id", lambda name: name)
    ),
    "the_same_id_at_each_start": Fault(
        "hello.new_id", put(stepwire.identity, "new_worker_id", lambda name: f"{name}:0123456789abcdef")
    ),
    "start_time_in_seconds": Fault("hello.process", process(pid_started=int(time.time()))),
    "host_is_the_boot_id_alone": Fault("hello.host", process(host="9a1e6d0c-77aa-4bd1-9a5b-1f6f5a1c2d3e")),
    "another_process_id": Fault("hello.process", process(pid=1)),
    "name_not_from_the_environment": Fault("hello.name", environ(STEPWIRE_NAME="other")),
    "slots_not_from_the_environment": Fault("hello.slots", environ(STEPWIRE_SLOTS="9")),
    "labels_not_from_the_environment": Fault("hello.labels", environ(STEPWIRE_LABELS="")),
    # -- sockets
    "subscribes_without_the_space": Fault(
        "hello.subscribes",
        edit(WorkerSockets, "__init__", "topics.to_worker(worker_id)", "topics.to_worker(worker_id)[:-1]"),
    ),
    "subscribes_brokers_without_the_space": Fault(
        "hello.subscribes", edit(WorkerSockets, "__init__", "topics.BROKERS", "topics.BROKERS[:-1]")
    ),
    "subscribes_steps_as_well": Fault(
        "hello.not_level_0",
        edit(
            WorkerSockets,
            "__init__",
            "self.sub.subscribe(topics.BROKERS)",
            "self.sub.subscribe(topics.BROKERS); self.sub.subscribe(b'steps ')",
        ),
    ),
    "subscribes_everything": Fault(
        "hello.subscribes",
        edit(
            WorkerSockets,
            "__init__",
            "self.sub.subscribe(topics.BROKERS)",
            "self.sub.subscribe(topics.BROKERS); self.sub.subscribe(b'')",
        ),
    ),
    "binds": Fault("arrival:binds", edit(WorkerSockets, "connect", "sock.connect(", "sock.bind(")),
    "immediate": Fault("restart.queue", options(immediate=1)),
    "linger_0": Fault(
        "drain.lingers", edit(WorkerSockets, "close", "self.pub.linger = LINGER_MS", "self.pub.linger = 0")
    ),
    "never_reconnects": Fault("restart.sockets", options(reconnect_ivl=-1)),
    "small_messages_only": Fault("payload.mebibyte_in", options(maxmsgsize=100_000)),
    "never_rebuilds": Fault("rebuild.silent", put(BrokerLinks, "_rebuild_silent", nothing)),
    "two_frames": Fault("arrival:frames", two_frames()),
    "topic_without_its_space": Fault("arrival:no space after its topic", topics(b" ", b"")),
    "topic_misspelt": Fault("arrival:misspelt", topics(b"workers ", b"worker ")),
    "topic_of_another_broker": Fault("results.form", topics(b"results@b1 ", b"results@b9 ")),
    "accept_to_every_broker": Fault("steps.accept", topics(b"results@b1 ", b"results ")),
    "handlers_on_the_socket_thread": Fault("heartbeat.computing", handlers_on_the_socket_thread()),
    "one_frame_for_each_wake": Fault("results.burst", one_frame_for_each_wake()),
    "split_at_every_space": Fault(
        "payload.spaces",
        edit(SocketThread, "_receive", "codec.split(frame)", "(frame.split(b' ')[0] + b' ', frame.split(b' ')[1])"),
    ),
    # -- what it reads
    "ends_at_malformed_json": Fault("malformed.not_json", bodies_in(ends_at_malformed)),
    "reads_ascii_only": Fault(
        "payload.unicode", bodies_in(lambda body: body.decode("ascii", "replace").encode("utf-8"))
    ),
    "reads_floats_as_integers": Fault("malformed.steps_float_task_id", received(integers)),
    "drops_unreadable_steps": Fault("malformed.steps_without_handler", put(Intake, "on_unreadable", nothing)),
    "drops_large_steps": Fault("malformed.too_large", bodies_in(lambda body: None if len(body) > 4_194_304 else body)),
    "refuses_unknown_members": Fault("malformed.unknown_members", received(strict)),
    "reads_any_major_version": Fault(
        "malformed.major_version",
        received(lambda m: m | {"v": "2.0", **({"protocol_version": "2.0"} if "protocol_version" in m else {})}),
    ),
    "refuses_minor_versions": Fault("malformed.minor_version", received(lambda m: m if m.get("v") == "2.0" else None)),
    "ignores_input": Fault("payload.input", steps_in(without("input"))),
    "ignores_traceparent": Fault("payload.traceparent", steps_in(without("traceparent"))),
    "ignores_results_of_dependencies": Fault("payload.context", steps_in(without("previous_results"))),
    "ignores_config": Fault("payload.context", steps_in(without("handler_config"))),
    # -- steps and results
    "never_accepts": Fault("steps.accept", out("accept", lambda message: None)),
    "repeated_steps_ignored": Fault("duplicates.running", put(Intake, "_answer_again", lambda *_: False)),
    "done_not_answered_again": Fault(
        "duplicates.done", edit(Intake, "_answer_again", "self._outbox.hasten(held.message, now_ms)", "pass")
    ),
    "no_tombstone_after_the_ack": Fault(
        "duplicates.acknowledged",
        edit(HeldDeliveries, "bury_acknowledged", "self.tombstones.add(items, peer, message.batch, now_ms)", "pass"),
    ),
    "items_by_step_alone": Fault(
        "duplicates.new_delivery",
        steps_in(lambda step: step.update(delivery=1)),
    ),
    "results_sent_once": Fault(
        "results.resent", put(ResultsOutbox, "resend", lambda self, now: setattr(self, "resend_at_ms", NEVER))
    ),
    "results_never_to_all": Fault(
        "results.broadcast",
        edit(ResultsOutbox, "resend", ">= limits.RESULTS_BROADCAST_FROM_TRY", ">= 10_000"),
    ),
    "results_always_to_all": Fault(
        "results.broadcast", edit(ResultsOutbox, "resend", ">= limits.RESULTS_BROADCAST_FROM_TRY", ">= 1")
    ),
    "results_without_a_pause": Fault(
        "hostile.never_ack", edit(ResultsOutbox, "resend", "message.wait_ms * 2", "message.wait_ms")
    ),
    "ack_ignored": Fault("results.ack_ends", put(ResultsReporting, "on_ack", nothing)),
    "one_rid_for_all": Fault("results.two_batches", member("results", rid=1)),
    "results_of_two_batches": Fault("results.two_batches", merged()),
    "results_without_deployment": Fault("results.form", member("results", deployment="")),
    "results_of_level_0": Fault("results.form", member("results", protocol_version="1.0")),
    "results_without_delivery": Fault(
        "results.form",
        out(
            "results",
            lambda m: m | {"results": [{k: v for k, v in r.items() if k != "delivery"} for r in m["results"]]},
        ),
    ),
    "large_results_sent_whole": Fault(
        "errors.too_large", edit(ResultsReporting, "_send", "len(body) > peer.bytes_max", "False")
    ),
    "refused_ignored": Fault("errors.refused", put(ResultsReporting, "on_refused", nothing)),
    "refused_forgotten": Fault(
        "errors.result_refused", edit(ResultsReporting, "on_refused", "if refused.is_replacement or ", "if True or ")
    ),
    "refused_repeated_for_ever": Fault(
        "errors.refused_twice", edit(ResultsReporting, "on_refused", "refused.is_replacement or ", "")
    ),
    "progress_dropped": Fault("progress.form", put(ProgressReports, "add", nothing)),
    # -- errors
    "unknown_handler_in_silence": Fault(
        "errors.unknown_handler", out("refuse", lambda m: None if m["code"] == "unknown_handler" else m)
    ),
    "permanent_is_retried": Fault("errors.permanent", error_without("retryable")),
    "retry_without_its_pause": Fault("errors.retry", error_without("retry_after_ms")),
    "category_lost": Fault("errors.unavailable", error_without("category")),
    "code_lost": Fault("errors.outcome_unknown", error_without("code")),
    "bad_input_as_a_failure": Fault("errors.bad_input", error_out(lambda result: result.update(status="failed"))),
    "message_without_its_type": Fault(
        "errors.type", error_out(lambda result: result["error"].update(message="it failed"))
    ),
    "writes_nan": Fault("errors.output_nan", encodes_badly("nan")),
    "writes_large_integers": Fault("errors.output_bigint", encodes_badly("bigint")),
    "writes_nul": Fault("errors.output_nul", encodes_badly("nul")),
    "writes_surrogates": Fault("errors.output_surrogate", encodes_badly("surrogate")),
    # -- at most once
    "runs_without_go": Fault("at_most_once.asks", edit(Runs, "start_queued", "if held.is_at_most_once:", "if False:")),
    "start_sent_once": Fault(
        "at_most_once.asks_again",
        edit(Runs, "ask", "held.ask_at_ms = now_ms + held.ask_wait_ms", "held.ask_at_ms = NEVER"),
    ),
    "go_of_another_delivery": Fault(
        "at_most_once.other_delivery",
        received(lambda m: m | {"items": [[item[0], 1] for item in m["items"]]} if m.get("type") == "go" else m),
    ),
    "cancel_of_what_waits_ignored": Fault(
        "at_most_once.cancelled", edit(Session, "_on_cancel", "if held.withdraw():", "if False:")
    ),
    "asking_survives_a_drop": Fault(
        "at_most_once.dropped",
        edit(Leases, "_drop", "if held.state is DONE:", "if held.state is DONE or held.state == 'asking':"),
    ),
    "asks_beyond_the_slots": Fault("at_most_once.takes_a_slot", edit(Slots, "has_next", "self.taken < (", "True or (")),
    # -- stopping
    "cancel_does_not_reach_handlers": Fault(
        "cancel.running",
        edit(SocketThread, "_cancel", "call = self._calls.get(action.item)", "call = None"),
    ),
    "cancel_without_its_reason": Fault(
        "cancel.reason",
        edit(SocketThread, "_cancel", "call.context._stop(action.reason)", "call.context._stop('stopped')"),
    ),
    "cancel_of_the_unknown_forgotten": Fault(
        "cancel.unknown", edit(Session, "_on_cancel", "self.holdings.tombstones.disown(item, peer, now_ms)", "pass")
    ),
    "timeouts_not_enforced": Fault(
        "timeout.enforced", put(Runs, "stop_overdue", lambda self, now: setattr(self, "timeout_at_ms", NEVER))
    ),
    "timeouts_from_the_receipt": Fault(
        "timeout.from_start",
        edit(Runs, "_start", "NEVER if deadline_ms is None else held.received_ms + deadline_ms", AS_TIMEOUT),
    ),
    "deadline_ignored": Fault("timeout.deadline", steps_in(without("deadline_ms"))),
    "concurrency_ignored": Fault(
        "concurrency.handler",
        both(
            edit(RunSlots, "__init__", "if offer.concurrency is not None", "if False"),
            edit(Slots, "__init__", "if offer.concurrency is not None", "if False"),
        ),
    ),
    "more_runs_than_slots": Fault("results.slots", run_slots(50)),
    "credit_never_falls": Fault(
        "steps.credit",
        both(
            put(Credit, "offer", lambda self, peer, now: (14, 4)),
            put(Credit, "offer_all", lambda self, n, now: ({"b1": 14}, {"b1": 4})),
        ),
    ),
    "credit_counts_what_is_done": Fault(
        "credit.done",
        edit(HeldDeliveries, "finish", "self._lighten(held, now_ms)", "pass"),
    ),
    "never_busy": Fault(
        "credit.busy", both(put(Credit, "places", lambda self: 10**9), put(Session, "_return_excess", nothing))
    ),
    # -- adoption, deployments, several brokers
    "adopt_ignored": Fault("adopt.held", put(Session, "_on_adopt", nothing)),
    "adopt_without_tombstones": Fault(
        "adopt.unknown", edit(Session, "_on_adopt", "self.holdings.tombstones.disown(item, peer, now_ms)", "pass")
    ),
    "adopted_items_keep_their_owner": Fault(
        "brokers.adopt", edit(Session, "_on_adopt", "self.holdings.move(held, peer)", "pass")
    ),
    "adopted_results_keep_their_owner": Fault("brokers.adopt_done", put(ResultsReporting, "change_owner", nothing)),
    "results_lost_at_a_drop": Fault(
        "reset.done",
        after(Leases, "on_reset", lambda leases: [leases._outbox.remove(m.rid) for m in list(leases._outbox)]),
    ),
    "queued_steps_survive_a_drop": Fault(
        "reset.queued",
        edit(Leases, "_drop", "if held.state is DONE:", "if held.state is DONE or held.state == 'queued':"),
    ),
    "results_of_an_old_deployment": Fault(
        "deployment.results", edit(Leases, "_replace", "self._outbox.discard(peer)", "0")
    ),
    "tombstones_of_an_old_deployment": Fault(
        "deployment.tombstones", edit(Leases, "_replace", "self._holdings.tombstones.forget_broker(peer)", "pass")
    ),
    "first_endpoint_only": Fault("brokers.sessions", first_endpoint_only()),
    "listed_brokers_ignored": Fault("brokers.listed", put(BrokerLinks, "learn", nothing)),
    "results_to_the_first_broker": Fault("brokers.owner", topics(b"results@b2 ", b"results@b1 ")),
    "all_credit_to_each_broker": Fault(
        "brokers.credit",
        put(
            Credit,
            "offer_all",
            lambda self, n, now: ({p.id: 14 for p in self._brokers}, {p.id: 4 for p in self._brokers}),
        ),
    ),
    "credit_divided_at_once": Fault(
        "brokers.promised", edit(Credit, "_split", "capacity - load - promised", "capacity - load")
    ),
    "no_credit_for_the_third_broker": Fault(
        "brokers.turns", edit(Credit, "_is_closed", "or peer.is_quiet", "or peer.is_quiet or peer.id == 'b3'")
    ),
    "results_of_a_moved_part_keep_their_owner": Fault(
        "brokers.moved", edit(Session, "_on_adopt", "self.holdings.move(held, peer)", "pass")
    ),
    # -- going away
    "quiet_ignored": Fault("quiet.order", edit(Leases, "on_heartbeat_ack", "peer.is_quiet = message.quiet", "pass")),
    "quiet_for_ever": Fault(
        "quiet.order", edit(Leases, "on_heartbeat_ack", "peer.is_quiet = message.quiet", "peer.is_quiet = True")
    ),
    "quit_ignored": Fault("drain.quit", edit(Session, "_dispatch", "if message.quit:", "if False:")),
    "ignores_term": Fault("drain.term", on_term(signal.SIG_IGN)),
    "ends_at_term_at_once": Fault("drain.running", on_term(signal.SIG_DFL)),
    "ends_with_unacknowledged_results": Fault(
        "drain.outbox", edit(Session, "_may_quit", "not self.holdings and", "not self.slots.taken and")
    ),
    "ends_while_steps_run": Fault("drain.running", edit(Session, "_may_quit", "not self.holdings and", "True and")),
    "drain_runs_what_waits": Fault(
        "drain.queued",
        edit(Session, "drain", 'self.intake.give_back(self.holdings.withdraw(), "draining", now_ms)', "pass"),
    ),
    "drain_accepts": Fault("drain.new", edit(Intake, "on_steps", "elif self._credit.is_draining:", "elif False:")),
    "drain_offers_credit": Fault("drain.no_credit", edit(Credit, "_is_closed", "self.is_draining or ", "")),
    "no_bye": Fault("drain.term", out("bye", lambda message: None)),
}
