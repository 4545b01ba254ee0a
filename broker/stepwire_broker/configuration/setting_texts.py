"""One sentence for every setting: for the reference, the schema, and the file that `config init` writes."""

from typing import Any, Final

import msgspec

from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.reading import durations

from . import seed_block
from .loader import KEYS, PREFIX, value_of

ABOUT: Final[dict[str, str]] = {
    "broker.id": "Name of this broker in messages to its workers. Letters, digits and -.",
    "broker.drain_timeout_ms": "Maximum time for running steps to finish when the broker is stopped.",
    "broker.lease_ms": "On PostgreSQL: other brokers take the lanes of a broker that has not beaten for this time. "
    "A broker beats five times in it.",
    "database.url": "Database that holds the state: sqlite:///FILE or postgresql://USER@HOST/DATABASE. The environment "
    "variable `DATABASE_URL` is read too.",
    "database.pool_size": "Number of connections that only read. After a take-over on PostgreSQL, all but one load "
    "tasks, each of another lane.",
    "database.schema": "The PostgreSQL schema that holds the tables. The first start creates it.",
    "database.lanes": "Number of lanes on PostgreSQL, which write in parallel. The first start makes them.",
    "database.prepare": "Keep prepared statements in the PostgreSQL server. Unset: unless a pooler is in between.",
    "database.listen_url": "PostgreSQL without the pooler of database.url, for notifications. Unset: database.url, or "
    "only polls if that leads to a pooler.",
    "database.lost_commits": "After a failover of PostgreSQL, a lane whose owner is gone stops until `stepwire db "
    "accept-loss`. stop_if_seen: only a loss that a broker sees stops it; for servers that only fail over to a "
    "synchronous standby.",
    "database.allow_unsafe": "Also start on a PostgreSQL server whose settings can lose acknowledged commits.",
    "bus.steps": "Endpoint where steps are published and handlers connect: ipc://, tcp:// or inproc://. Or a list of "
    "endpoints, such as ipc:// for this host and tcp:// with keys for others.",
    "bus.results": "Endpoint where handlers send their results, or a list of the same length as bus.steps.",
    "bus.ipc_mode": "Mode of the ipc sockets: 0600, or 0660 for other users of the broker's group that have a client "
    "file.",
    "bus.curve.secret_file": "File with the brokers' CURVE key pair: see `stepwire keys init`. With it, each tcp "
    "endpoint of the bus requires a key.",
    "bus.curve.clients_dir": "Directory with one file per principal: its keys and its grant. See `stepwire keys new`.",
    "bus.next.steps": "Endpoint of the bus for the key that replaces the brokers' key, such as tcp://0.0.0.0:7421. "
    "Without a rotation, it serves the current key. See `stepwire keys rotate --server`.",
    "bus.next.results": "As bus.next.steps, for results.",
    "bus.batch.max_steps": "Maximum number of steps in one message.",
    "bus.batch.max_bytes": "Maximum size of one message with steps.",
    "bus.heartbeat_ms": "Interval of the workers' heartbeats: at most half of the lease; a fifth of it is recommended.",
    "bus.lease_ms": "A worker that is silent for this time loses its steps to other workers.",
    "bus.steps_hwm": "Maximum number of messages that wait for one slow subscriber.",
    "bus.results_hwm": "Maximum number of messages of one connection that wait; fewer if they could exceed 128 MiB.",
    "bus.level0.handlers": "Handler classes for level 0. Patterns; ** matches all that no worker ever offered.",
    "bus.level0.at_most_once": "Also send at_most_once steps to level-0 handlers.",
    "bus.level0.batch_max_steps": "Maximum number of steps that a level-0 handler gets at a time.",
    "bus.allow_insecure": "Listen on the network without keys: every host there can read and send everything.",
    "bus.advertise": "Host that workers connect to. Unset: the host of the endpoint, or this host's name.",
    "bus.lost_sessions_max": "A step fails once N workers were lost while they ran it.",
    "bus.max_connections": "Maximum number of connections. The limit of open files may reduce it.",
    "bus.max_message_bytes": "Maximum size of a message. The broker refuses larger ones.",
    "execution.default_execution_mode": "Where a step without labels runs: `distributed` (on executors) or `local` (in "
    "this process). Unset: distributed, unless the bus is inproc only.",
    "execution.default_executor": "Executor of distributed steps that match no rule.",
    "execution.on_missing": "A distributed step whose executor is missing: `error` fails it, `local` runs it here.",
    "execution.rules": "Rules that decide where steps run, by path (namespace::workflow::step). The first match wins.",
    "executors.local.modules": "Python workers to run in this process: package.module:worker.",
    "executors.local.threads": "Maximum number of local handlers that run at a time.",
    "executors.exec.commands": "By handler_class or pattern: the program and its arguments, or a map of argv, cwd, "
    "env, limits and shadow_safe. The program reads the step from stdin and writes its output to stdout.",
    "executors.exec.slots": "Maximum number of programs that run at a time.",
    "executors.exec.limits.memory_bytes": "Maximum address space of each process of a program (RLIMIT_AS).",
    "executors.exec.limits.cpu_s": "Maximum computing time of each process of a program, in seconds (RLIMIT_CPU).",
    "executors.exec.limits.open_files": "Maximum number of open files of each process of a program (RLIMIT_NOFILE).",
    "executors.exec.limits.processes": "Maximum number of processes of the broker's user, the broker included "
    "(RLIMIT_NPROC).",
    "executors.exec.limits.core_bytes": "Maximum size of a core dump of a program (RLIMIT_CORE).",
    "executors.exec.limits.file_bytes": "Maximum size of a file that a program writes (RLIMIT_FSIZE).",
    "executors.exec.secrets_dir": "Directory of files with the secrets that steps of programs refer to by `$secret`. "
    "Only the broker's user may use the files.",
    "executors.exec.runs_dir": "Directory with the records of running programs, so that a restarted broker can end "
    "them. Each broker needs its own.",
    "executors.poll.enabled": "Let handlers lease steps over HTTP.",
    "executors.options": "Options of further executors, by their key.",
    "handlers.pass_env": "Variables that `--with-handlers` and `dev` pass to handlers, besides PATH, HOME, LANG, TZ "
    "and those of workers. Patterns like AWS_* are possible. STEPWIRE_TOKEN_FILE passes the broker's own token.",
    "dispatch.unroutable_after_ms": "Raise an alarm if no worker can take a ready step for this time.",
    "dispatch.breaker.enabled": "Pause a handler whose infrastructure fails.",
    "dispatch.breaker.failure_threshold": "Number of infrastructure failures in a row that open a handler's breaker.",
    "dispatch.breaker.window_ms": "Time window in which outcomes are counted.",
    "dispatch.breaker.window_outcomes": "Minimum number of outcomes in the window before the share counts.",
    "dispatch.breaker.window_percent": "Share of failures in the window that opens the breaker, in percent.",
    "dispatch.breaker.open_ms": "Time that the breaker stays open at first; doubled each time it opens again.",
    "dispatch.breaker.open_max_ms": "Maximum time that the breaker stays open.",
    "dispatch.breaker.success_threshold": "Trial steps allowed at a time while half-open, and successes needed to "
    "close the breaker.",
    "dispatch.retry_budget.percent": "Maximum share of retries among a handler's starts, in percent. 100 is no limit.",
    "dispatch.retry_budget.at_least": "Number of retries that are always allowed in the window.",
    "dispatch.retry_budget.window_ms": "Time window in which retries and starts are counted.",
    "http.listen": "Address of the HTTP API. `null`: only `http.socket` is served.",
    "http.socket": "Unix socket of the HTTP API, for programs of the broker's own user. They need no token there.",
    "http.tokens_file": "File with the API's tokens or their digests (`sha256:…`), one per line. Unset: generated.",
    "http.hosts": "Names that are accepted in a request's Host header, in addition to `listen` and the loopback.",
    "http.tls.cert_file": "File with the certificate of `http.listen` and its intermediate certificates, PEM. With it, "
    "the address speaks https only.",
    "http.tls.key_file": "File with the private key of the certificate, PEM, mode 0600.",
    "http.tls.client_ca_file": "File with the authorities of client certificates, PEM. A client with such a "
    "certificate needs no token if a line `cert:<name>` of the tokens file names it.",
    "http.jwt.issuer": "Issuer (`iss`) of the signed tokens (JWT) that are accepted. Needs the extra `jwt`.",
    "http.jwt.audience": "Audience (`aud`) that a signed token must name.",
    "http.jwt.jwks_url": "URL of the issuer's public keys, https. Read at the start, every 5 minutes, and for an "
    "unknown key.",
    "http.jwt.jwks_file": "File with the issuer's public keys, instead of the URL. Read at the start, and within 3 s "
    "of a change.",
    "http.jwt.claims.scopes": "Claim with the scopes of a signed token: a list, or a string with spaces. Words "
    "that are no scope are ignored.",
    "http.jwt.claims.namespaces": "Claim with the namespaces that a signed token reads and changes; a token without "
    "it is refused. Unset: all.",
    "http.jwt.claims.roles": "Claim with the roles of the token's holder, for approvals.",
    "http.max_connections": "Maximum number of connections; smaller if the process may open only a few files.",
    "http.allow_insecure": "Listen on the network without TLS: behind a proxy with TLS, or on a trusted network.",
    "limits.max_open_steps": "Maximum number of open steps of all brokers on the database. More are refused.",
    "limits.max_active_tasks": "Maximum number of tasks in memory. Other tasks wait in the database.",
    "limits.active_bytes": "Maximum size of the contexts and outputs in memory.",
    "limits.uncommitted_bytes": "Maximum size of the writes that wait for the database. Above this size, the broker "
    "accepts no work.",
    "limits.payload_bytes": "Maximum size of a context or output. Larger ones are refused.",
    "limits.resident_payload_bytes": "A larger context or output is not kept in memory; it is read when it is needed.",
    "limits.steps_per_workflow": "Maximum number of steps in a workflow.",
    "limits.edges_per_workflow": "Maximum number of dependencies in a workflow.",
    "limits.tasks_per_batch": "Maximum number of tasks in one submission.",
    "limits.steps_per_batch": "Maximum number of steps of all tasks in one submission. A single task may have more.",
    "limits.namespaces": "Quotas, by namespace: a map of max_open_steps, steps_per_s and priority_max. Submissions "
    "beyond a quota are refused. HUP reloads them. max_open_steps counts the steps at all brokers, "
    "and steps_per_s those that one broker accepts.",
    "retention.completed_ms": "Time that completed tasks are kept.",
    "retention.failed_ms": "Time that failed and cancelled tasks are kept.",
    "retention.audit_ms": "Time that rows of the audit are kept.",
    "security.strict": "Refuse, also on the loopback: a bus on tcp without keys, HTTP on tcp without TLS, tokens that "
    "never expire or have the scope admin, and programs of `exec` in the broker.",
    "security.key_file": "File with the broker's secret key, which the first start makes. Keep a copy apart from the "
    "database and its backups.",
    "security.erasures_file": "File with keyed hashes of erased tasks. A restore erases these tasks again.",
    "log_level": "Lowest level that is logged: debug, info, warning or error. HUP reloads it.",
}
assert ABOUT.keys() == KEYS.keys(), ABOUT.keys() ^ KEYS.keys()


def sections() -> list[tuple[str, list[str]]]:
    """Each section with its keys. The keys of a section come before its subsections."""
    by_section: dict[str, list[str]] = {}
    for key in KEYS:
        by_section.setdefault(key.rpartition(".")[0], []).append(key)
    return list(by_section.items())


def default_of(key: str) -> Any:
    value = value_of(Settings(), key)
    return list(value) if isinstance(value, tuple) else value


def unit_of(key: str) -> str:
    return "ms" if key.endswith("_ms") else "bytes" if key.endswith("_bytes") else ""


def environment_of(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def sample_file() -> str:
    """A configuration file that lists every setting, commented out, with its default."""
    lines = [
        "# Stepwire's configuration. Every value here is the default. To change a setting, remove its #.",
        "# A key that ends in _ms may be written without _ms, as a duration: lease: 10s",
        "# Check it: stepwire config validate. See where each value comes from: stepwire config show --origin",
    ]
    written: set[str] = set()
    for section, names in sections():
        path = section.split(".") if section else []
        for depth in range(len(path)):
            head = ".".join(path[: depth + 1])
            if head not in written:
                lines += [] if depth else [""]
                lines.append(f"{'  ' * depth}{path[depth]}:")
                written.add(head)
        lines += [] if path else [""]
        for key in names:
            name = key.rpartition(".")[2]
            lines.append(f"{'  ' * len(path)}# {ABOUT[key]}")
            lines.append(f"{'  ' * len(path)}# {name}: {msgspec.json.encode(default_of(key)).decode()}")
    return "\n".join(lines) + "\n"


def schema() -> dict[str, Any]:
    """The configuration file as JSON Schema, for editors."""
    root = _object("The configuration of a Stepwire broker.")
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    for key, kind in KEYS.items():
        *path, name = key.split(".")
        at = root
        for section in path:
            at = at["properties"].setdefault(section, {**_object(""), "type": ["object", "null"]})
        (of_type,), definitions = msgspec.json.schema_components([kind])
        root.setdefault("$defs", {}).update(definitions)
        at["properties"][name] = {**of_type, "description": ABOUT[key], "default": default_of(key)}
        if name.endswith("_ms"):
            about = f"{ABOUT[key]} A duration like 30s, 5m or 7d."
            duration = {"type": "string", "pattern": durations.PATTERN, "description": about}
            at["properties"][name.removesuffix("_ms")] = duration
            at.setdefault("allOf", []).append({"not": {"type": "object", "required": [name, name.removesuffix("_ms")]}})
    block = _object("Keys of an earlier product, mapped to the settings above.")
    block["properties"] = dict.fromkeys(seed_block.NAMES, True)
    root["properties"][seed_block.BLOCK] = block
    return root


def _object(about: str) -> dict[str, Any]:
    described = {"description": about} if about else {}
    return {"type": "object", **described, "properties": {}, "additionalProperties": False}
