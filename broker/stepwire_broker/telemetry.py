"""Every log event of the product: the contract that docs/reference/logs.md documents.

`tests/cli/test_telemetry.py` compares these tables with the calls in the code.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class LogEvent(NamedTuple):
    """One event. A line may lack the `optional` members."""

    name: str
    levels: tuple[Level, ...]
    members: tuple[str, ...]
    meaning: str
    optional: tuple[str, ...] = ()


def _debug(name: str, members: str, meaning: str) -> LogEvent:
    return LogEvent(name, ("debug",), tuple(members.split()), meaning)


def _info(name: str, members: str, meaning: str) -> LogEvent:
    return LogEvent(name, ("info",), tuple(members.split()), meaning)


def _warning(name: str, members: str, meaning: str) -> LogEvent:
    return LogEvent(name, ("warning",), tuple(members.split()), meaning)


def _error(name: str, members: str, meaning: str, optional: str = "") -> LogEvent:
    return LogEvent(name, ("error",), tuple(members.split()), meaning, tuple(optional.split()))


# By logger. A line holds `event`, `level`, `timestamp` and the members.
BROKER_EVENTS: Final[dict[str, tuple[LogEvent, ...]]] = {
    "stepwire.broker": (
        _info(
            "broker_started",
            "broker epoch deployment open_tasks open_steps steps results",
            "The broker accepts work. `steps` and `results` are its endpoints.",
        ),
        _info(
            "erasures_finished",
            "tasks words bytes places compacted is_clean",
            "The database file was searched for words of erased payloads. `places`: where they were left.",
        ),
        _info("broker_drained", "running", "A drain has ended. `running` is the number of steps that did not finish."),
        _error("broker_failed", "reason", "The broker stops because it cannot continue safely."),
        _warning("bus_alarm", "text", "The bus needs attention. `text` is the reason."),
        _warning(
            "server_key_added",
            "key next",
            "A rotation of the brokers' CURVE key has begun: `bus.next` serves the key `next`. Workers get it in"
            " acks of heartbeats.",
        ),
        _warning(
            "server_key_replaced",
            "key next",
            "The brokers' CURVE key is now `key`. Workers get it in acks of heartbeats, and connect again.",
        ),
        _warning("server_key_dropped", "key next", "A rotation of the brokers' CURVE key was cancelled."),
        _warning(
            "peer_disconnected",
            "reason principal connections",
            "The bus has ended connections because of a budget. `reason` is that of the last one, and `connections` is"
            " the number since the last such line of this principal: at most one line in 10 s. A peer that has sent"
            " nothing has no principal.",
        ),
        _warning(
            "loop_was_late",
            "gap_ms busy_ms",
            "The loop read nothing for `gap_ms`. If `busy_ms`, its own computing time, is much less, the process or "
            "the machine was stopped or had no free core.",
        ),
        _warning(
            "level0_answer_refused",
            "code text",
            "The broker refused the answer of a level-0 handler. Each code is logged at most once in 10 s.",
        ),
        _warning(
            "message_refused",
            "worker type code text principal",
            "The broker refused a message or a subscription. The first refusal of each code is logged for each worker."
            " Without `worker`, its id could not be read, and each code is logged at most once in 10 s. `unauthorized`,"
            " `foreign_inbox`, `level0` and `subscription` are logged at most once in 10 s for each principal: `worker`"
            " is then only what the sender claims.",
        ),
        _info("worker_died", "worker pid", "The process of a worker has ended. Its steps run again at once."),
        _warning(
            "worker_flaps",
            "worker code resets within_ms",
            "The broker has reset the sessions of this worker `resets` times within `within_ms`. `code` is that of the"
            " last reset.",
        ),
        _warning(
            "offers_not_recorded",
            "worker handlers limit",
            "A worker offers new handlers, and `limit` handlers are recorded as offered by workers. Level 0 can get the"
            " steps of these handlers by a pattern without a literal part, such as `**`, while no worker offers them.",
        ),
        _warning(
            "database_stalled",
            "code error",
            "A commit failed or is late. The broker retries it and accepts no work meanwhile.",
        ),
        _warning(
            "database_recovered",
            "code stalled_ms",
            "Commits succeed again after `database_stalled`, and the broker accepts work.",
        ),
        _info(
            "lane_taken", "lane open_tasks", "The broker owns a lane of the database from now on, with its open tasks."
        ),
        _info("broker_joined", "broker", "Another broker on the same database is alive."),
        _warning(
            "broker_died",
            "broker",
            "Another broker has not beaten for its lease, or its process on this host has ended. Other brokers take its"
            " lanes.",
        ),
        _warning(
            "broker_dark",
            "lanes",
            "The broker could not renew its lease in the database. It sends nothing until it can, because other"
            " brokers may take its lanes.",
        ),
        _warning(
            "broker_not_dark",
            "dark_ms lost",
            "The broker has renewed its lease after `broker_dark`. It goes on with the lanes that it still owns;"
            " other brokers have taken the lanes of `lost`.",
        ),
        _info("lane_released", "lane", "The broker has released a lane of the database to other brokers."),
        _warning(
            "lane_lost",
            "lane reason tasks sessions",
            "The broker no longer owns a lane of the database, and goes on with its other lanes. `tasks` of the lane"
            " were in its memory. `sessions` of workers ended, because they held steps of it; the workers keep their"
            " runs.",
        ),
        _error(
            "lane_stopped",
            "lane reason tasks sessions",
            "A lane of the database ends before a group that was committed. The broker serves the lane no longer, and"
            " goes on with its other lanes, until an operator accepts the loss. `/readyz` names the lane.",
        ),
        _warning(
            "read_failed",
            "error",
            "A read from the database failed. The broker reads again, or refuses the request that needed it.",
        ),
        _warning(
            "rule_never_matches",
            "rule number because_of",
            "A routing rule cannot match: the rule `because_of` comes first and matches all the same steps.",
        ),
        _warning(
            "steps_unroutable",
            "handler_class executor worker_selector steps hint",
            "No connected worker can take these ready steps.",
        ),
        LogEvent(
            "member_health",
            ("info", "warning"),
            ("executor_type", "member", "state", "reason"),
            "The health of a member has changed: see `GET /health/orchestration`. A healthy member is logged as info.",
        ),
        LogEvent(
            "orchestration_health",
            ("info", "warning"),
            ("before", "after", "reason"),
            "The health of all stages together has changed. `healthy` is logged as info.",
        ),
        _warning(
            "breaker_opened",
            "handler_class by cause reason left_ms",
            "The breaker of a handler has opened: its steps wait.",
        ),
        _info(
            "breaker_half_open",
            "handler_class by cause reason left_ms",
            "The breaker of a handler allows trial steps.",
        ),
        _info(
            "breaker_closed",
            "handler_class by cause reason left_ms",
            "The breaker of a handler has closed: its steps run again.",
        ),
    ),
    "stepwire.bus": (
        _warning(
            "bus_is_open",
            "text",
            "`bus.allow_insecure` is set, and the bus listens on the network without keys. Logged every minute.",
        ),
        _error(
            "client_file_invalid",
            "text",
            "A file of `bus.curve.clients_dir` is invalid. Its principal keeps the rights of the last valid file.",
        ),
        _warning("key_uses_unwritten", "error", "The file with the last use of each key of the bus cannot be written."),
        _error(
            "server_key_invalid",
            "text",
            "The file of the brokers' key, or of the next one, cannot be used. The bus keeps its keys.",
        ),
        _warning(
            "connection_refused",
            "code address key principal",
            "The bus refused a connection: its key or its user has no access. `principal` is the owner of an expired or"
            " revoked key. Logged at most once in 10 s for the same key and address.",
        ),
    ),
    "stepwire.audit": (
        _info(
            "audit_head",
            "lane n hash",
            "The end of a chain of the audit: at the start, every hour, and at each backup. A stored line proves later"
            " that no earlier row was changed.",
        ),
        _warning("read_failed", "error", "The ends of the audit's chains could not be read."),
    ),
    "stepwire.store": (
        _warning(
            "database_timeline_changed",
            "lane before now",
            "The lane's writer is connected to a server that was promoted or restored. The lane goes on if it is "
            "complete there.",
        ),
        _info(
            "pruned",
            "tasks steps history keys parked audit took_ms",
            "Retention has removed ended tasks, or old rows of the audit. The members are the numbers of removed rows.",
        ),
        _warning("prune_hindered", "code error", "Retention could not remove anything. It tries again later."),
        _error("task_is_not_over", "task_id hint", "A task to prune has an open step. Retention does not touch it."),
    ),
    "stepwire.executor": (
        _error(
            "executor_broke",
            "executor what error",
            "An executor raised an exception in its method `what`.",
            optional="steps",
        ),
    ),
    "stepwire.exec": (
        _info("run_cancelled", "step_id delivery reason", "The broker sent SIGTERM to a running program."),
        _warning(
            "program_failed", "task_id step_id step error", "A run of a program failed. `step` is the step's path."
        ),
        _debug("run_stderr", "step_id stderr", "A program wrote this to stderr."),
        _warning("run_record_stays", "file error", "The record of an ended program could not be removed."),
        _error("run_does_not_end", "pid program", "A killed program still exists. The broker waits for its end."),
        _warning("run_record_unreadable", "file error kept_as", "The record of an earlier run cannot be read."),
        _warning(
            "run_of_another_namespace",
            "pid step_id program",
            "An earlier run is in another PID namespace, so the broker cannot end it.",
        ),
        _warning("stray_process_killed", "pid run", "A process had left the session of its program, which has ended."),
        _error("stray_process_lives", "pid run", "Such a process still exists, although it was killed."),
        _error("sweep_failed", "error", "The broker could not look for such processes."),
        _warning("earlier_run_ended", "pid step_id program", "The broker ended a program of an earlier process."),
    ),
    "stepwire.api": (
        _error("request_failed", "method path", "The broker failed to answer a request. `exception` is the traceback."),
        _warning(
            "requests_refused",
            "source refused",
            "Requests from this address were refused. `refused` counts them by status, and by token if the token is "
            "known. A source is logged at its first refusal, and then at most once in 10 s.",
        ),
        _warning(
            "http_socket_unavailable",
            "error",
            "The Unix socket `http.socket` cannot be used, so the API is served on `http.listen` only.",
        ),
        _info(
            "certificate_changed", "expires", "The files of http.tls have changed. New connections get the certificate."
        ),
        _error(
            "certificate_refused", "error", "Changed files of http.tls cannot be used: the former certificate stays."
        ),
        _warning("certificate_expires", "at", "The certificate of http.tls expires within 14 days, or has expired."),
        _warning(
            "jwks_refused",
            "error",
            "The keys of http.jwt cannot be read again, so the former keys apply, for at most 24 h.",
        ),
        _warning(
            "jwks_empty", "error", "The issuer has withdrawn all keys of http.jwt, so every signed token is refused."
        ),
        _info("tokens_changed", "", "A token file has changed, and the tokens in it apply now."),
        _warning("token_uses_unwritten", "error", "The file with the last use of each token cannot be written."),
        _warning("tokens_refused", "error", "A token file has changed and cannot be read, so the old tokens apply."),
        _error("stream_failed", "path", "The broker failed to continue a stream. `exception` is the traceback."),
    ),
    "stepwire.serve": (
        _warning(
            "reloaded",
            "log_level tokens needs_restart",
            "The configuration was reloaded. `needs_restart` lists changed settings that need a restart.",
        ),
        _warning("reload_refused", "error", "The new configuration is wrong, so nothing changed."),
        _warning("handlers_ended", "module how again_in_ms", "A process of `--with-handlers` ended and is restarted."),
        _warning("handlers_killed", "module after_s", "A process of `--with-handlers` did not end in time."),
        _warning("systemd_notify_failed", "text error", "A notification could not be sent to systemd."),
    ),
}

RUN_MEMBERS: Final = ("task_id", "step_id", "step_name", "attempt", "delivery")

# A worker of the Python SDK logs through `logging`, logger `stepwire.worker`: a sentence for each event.
WORKER_EVENTS: Final[tuple[LogEvent, ...]] = (
    _info("worker_started", "name handlers slots pid", "The worker starts to connect."),
    _warning(
        "no_broker",
        "endpoint reason seconds",
        "No broker has answered for `seconds`. Repeated after 3, 10, 30 and 60 s, then every 300 s.",
    ),
    _info("session_opened", "broker session", "A broker has accepted this worker."),
    LogEvent(
        "session_dropped",
        ("warning", "error"),
        ("broker", "session", "why", "not_started"),
        "The session has ended. `not_started` steps that had not started were dropped.",
    ),
    LogEvent(
        "run_failed",
        ("info", "warning", "error"),
        RUN_MEMBERS,
        "A run has failed. An unexpected exception is an error with its traceback; `Retry`, `Permanent` and the other"
        " errors of the SDK are warnings; a run that ends after it was asked to stop is info.",
    ),
    LogEvent(
        "run_interrupted",
        ("info", "warning"),
        RUN_MEMBERS,
        "A run exceeded its timeout, was cancelled, or has lost its broker.",
    ),
    LogEvent(
        "loop_blocked",
        ("warning",),
        (),
        "An async handler has blocked the event loop for 2 s, and other async steps wait: use a plain `def`, or await."
        " Without the members of a step, a task that the handler has made blocks the loop.",
        optional=RUN_MEMBERS,
    ),
    _error(
        "deployment_replaced",
        "broker deployment results_discarded",
        "The broker has another database, so results for the earlier one were discarded.",
    ),
    LogEvent(
        "steps_refused",
        ("info", "warning"),
        ("broker", "batch_id", "code", "steps"),
        "The worker refused steps, and the broker runs them elsewhere.",
    ),
    _error("message_unreadable", "code why", "A message of a broker could not be read."),
    _error("message_refused", "broker refused code message", "A broker refused a message of this worker."),
    _info("link_moved", "link broker", "A silent broker is listed at a new address, to which the worker connects."),
    _debug("link_rebuilt", "link broker", "The sockets of an endpoint without answers were rebuilt."),
    _info("server_key_changed", "link broker", "A broker has a new CURVE key, and the worker connects with it."),
    _info("link_removed", "link broker", "A broker that is in no list was disconnected."),
    _warning("broker_ignored", "broker", "A listed broker requires CURVE keys, which the worker does not have."),
    _error("connect_failed", "endpoint error", "The worker cannot connect to an endpoint."),
    _info("worker_drains", "running", "The worker accepts no further steps, and lets running steps finish."),
    _info("worker_ended", "unacknowledged", "The worker has ended. No broker has acknowledged these steps."),
    _error("worker_failed", "", "The worker's socket thread failed and the worker stops. A traceback follows."),
)
