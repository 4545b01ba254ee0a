"""The typed configuration: every key, its default and its unit. `stepwire.yaml` has the same shape."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct
from stepwire_protocol import limits
from stepwire_protocol.messages import BrokerId

Ms: TypeAlias = Annotated[int, Meta(ge=0, le=366 * 24 * 3600 * 1000)]
PositiveMs: TypeAlias = Annotated[int, Meta(ge=1, le=366 * 24 * 3600 * 1000)]
RetentionMs: TypeAlias = Annotated[int, Meta(ge=1, le=3660 * 24 * 3600 * 1000)]
Size: TypeAlias = Annotated[int, Meta(ge=1, le=limits.INTEGER_MAX)]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=limits.INTEGER_MAX)]
Priority: TypeAlias = Annotated[int, Meta(ge=-200, le=200)]  # of a task and a step together


class BrokerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    id: BrokerId = "b1"
    drain_timeout_ms: Ms = 30_000
    lease_ms: Annotated[int, Meta(ge=1_000, le=600_000)] = 10_000


class DatabaseSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """`schema`, `lanes`, `prepare`, `listen_url`, `lost_commits` and `allow_unsafe` are PostgreSQL's."""

    url: str = "sqlite:///.stepwire/state.db"
    pool_size: Annotated[int, Meta(ge=1, le=64)] = 4
    schema: str = "stepwire"
    lanes: Annotated[int, Meta(ge=1, le=64)] = 8
    prepare: bool | None = None
    listen_url: str | None = None
    lost_commits: Literal["stop", "stop_if_seen"] = "stop"
    allow_unsafe: bool = False


class BatchSettings(Struct, frozen=True, forbid_unknown_fields=True):
    max_steps: Annotated[int, Meta(ge=1, le=limits.BATCH_ITEMS_MAX)] = 50
    max_bytes: Size = 1024 * 1024


class Level0Settings(Struct, frozen=True, forbid_unknown_fields=True):
    handlers: tuple[str, ...] = ("**",)
    at_most_once: bool = False
    batch_max_steps: Limit = 1


class CurveSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """With a secret file, every tcp endpoint of the bus requires CURVE."""

    secret_file: str | None = None
    clients_dir: str | None = None


class NextSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A pair of tcp endpoints for the key that replaces the brokers' key. Without a rotation, they serve that key."""

    steps: str | None = None
    results: str | None = None


OneOrMore: TypeAlias = str | tuple[str, ...]


class BusSettings(Struct, frozen=True, forbid_unknown_fields=True):
    steps: OneOrMore = "ipc://.stepwire/steps.sock"
    results: OneOrMore = "ipc://.stepwire/results.sock"
    ipc_mode: Literal["0600", "0660"] = "0600"
    curve: CurveSettings = CurveSettings()
    next: NextSettings = NextSettings()
    batch: BatchSettings = BatchSettings()
    heartbeat_ms: PositiveMs = limits.HEARTBEAT_MS
    lease_ms: PositiveMs = limits.LEASE_MS
    steps_hwm: Limit = 1000
    results_hwm: Limit = 10_000
    level0: Level0Settings = Level0Settings()
    allow_insecure: bool = False
    advertise: str | None = (
        None  # the host that workers connect to, if it differs from the address that the broker binds
    )
    lost_sessions_max: Limit = 3
    max_connections: Limit = 4_096
    max_message_bytes: Size = limits.MESSAGE_BYTES_MAX


Percent: TypeAlias = Annotated[float, Meta(ge=0, le=100)]
ExecutorKey: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
Labels: TypeAlias = dict[str, Any]  # as in a workflow: numbers and truth values become strings


class CanarySettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A percentage of a rule's tasks runs elsewhere: on another executor, on other workers, or both."""

    percent: Percent
    executor: ExecutorKey | None = None
    worker_selector: Labels | None = None


class ShadowSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """A copy of each step also runs on this executor or these workers, and the two results are compared."""

    executor: ExecutorKey | None = None
    worker_selector: Labels | None = None
    percent: Percent = 100.0


class RuleSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Steps whose path matches run on this executor, on workers with these labels."""

    match: str
    executor: ExecutorKey | None = None
    worker_selector: Labels | None = None
    canary: CanarySettings | None = None
    shadow: ShadowSettings | None = None


class ExecutionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    default_execution_mode: Literal["local", "distributed"] | None = None  # None: distributed if the bus is
    default_executor: ExecutorKey = "bus"
    on_missing: Literal["error", "local"] = "error"
    rules: tuple[RuleSettings, ...] = ()


class LocalSettings(Struct, frozen=True, forbid_unknown_fields=True):
    modules: tuple[str, ...] = ()  # package.module:worker
    threads: Limit = 8


class ProgramLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Resource limits of a program and, each for itself, of the processes that it starts. None: those of the broker."""

    memory_bytes: Size | None = None  # address space
    cpu_s: Limit | None = None
    open_files: Limit | None = 1024
    processes: Limit | None = None  # of the whole user, the broker included
    core_bytes: Annotated[int, Meta(ge=0)] | None = 0
    file_bytes: Size | None = None  # of each file that it writes


class CommandLimits(ProgramLimits, frozen=True, forbid_unknown_fields=True):
    """The limits of one command. None: those of `executors.exec.limits`."""

    open_files: Limit | None = None
    core_bytes: Annotated[int, Meta(ge=0)] | None = None


class CommandSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The program for a handler_class. It is started without a shell."""

    argv: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = {}
    shadow_safe: bool = False
    limits: CommandLimits | None = None


class ExecSettings(Struct, frozen=True, forbid_unknown_fields=True):
    commands: dict[str, CommandSettings | tuple[str, ...]] = {}  # by handler_class or pattern
    slots: Limit = 8
    limits: ProgramLimits = ProgramLimits()
    secrets_dir: str | None = None  # None: the programs get no secrets
    runs_dir: str = ".stepwire/runs"  # running programs are recorded there for the next broker process


class PollSettings(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True


class ExecutorsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    local: LocalSettings = LocalSettings()
    exec: ExecSettings = ExecSettings()
    poll: PollSettings = PollSettings()
    options: dict[str, dict[str, Any]] = {}  # of executors from other packages, by their key


class HandlersSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The processes of `serve --with-handlers` and `dev`."""

    # The places of toolchains, which hold no secrets. PATH, HOME, LANG and TZ are always passed.
    pass_env: tuple[str, ...] = (
        *("LC_ALL", "TMPDIR", "VIRTUAL_ENV", "PYTHONPATH", "GEM_HOME", "GEM_PATH", "NODE_PATH", "JAVA_HOME"),
        *("GOPATH", "GOCACHE", "GOFLAGS", "GOTOOLCHAIN", "GOWORK", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"),
    )


class BreakerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    failure_threshold: Limit = 5  # in a row
    window_ms: PositiveMs = 30_000
    window_outcomes: Limit = (
        20  # the window opens the breaker if it has at least N outcomes and `window_percent` are failures
    )
    window_percent: Percent = 50.0
    open_ms: PositiveMs = 5_000  # doubled each time, up to open_max_ms
    open_max_ms: PositiveMs = 120_000
    success_threshold: Limit = 2


class RetryBudgetSettings(Struct, frozen=True, forbid_unknown_fields=True):
    percent: Percent = 20.0  # of a handler's starts; 100: no limit
    at_least: Limit = 10
    window_ms: PositiveMs = 60_000


class DispatchSettings(Struct, frozen=True, forbid_unknown_fields=True):
    unroutable_after_ms: PositiveMs = 10_000
    breaker: BreakerSettings = BreakerSettings()
    retry_budget: RetryBudgetSettings = RetryBudgetSettings()


class TlsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """With a certificate, `http.listen` speaks https only."""

    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None

    @property
    def is_on(self) -> bool:
        return self.cert_file is not None or self.key_file is not None


class JwtClaims(Struct, frozen=True, forbid_unknown_fields=True):
    """The names of the claims that the broker reads."""

    scopes: str = "scope"
    namespaces: str | None = None
    roles: str | None = None


class JwtSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """With an issuer, its signed tokens are accepted besides the tokens of the token files."""

    issuer: str | None = None
    audience: str | None = None
    jwks_url: str | None = None
    jwks_file: str | None = None
    claims: JwtClaims = JwtClaims()

    @property
    def is_on(self) -> bool:
        return any((self.issuer, self.audience, self.jwks_url, self.jwks_file))


class HttpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    listen: str | None = "127.0.0.1:7410"  # None: only `socket`
    socket: str = ".stepwire/http.sock"  # for programs of the broker's own user
    tokens_file: str | None = None
    hosts: tuple[str, ...] = ()  # names that a request's Host may have in addition to `listen` and the loopback
    tls: TlsSettings = TlsSettings()
    jwt: JwtSettings = JwtSettings()
    allow_insecure: bool = False  # listen beyond the loopback: a proxy ends TLS, or the network is trusted
    max_connections: Annotated[int, Meta(ge=64, le=1_000_000)] = 6_144  # fewer if the process may open fewer files


class QuotaSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of the tasks of one namespace. None: no limit."""

    max_open_steps: Limit | None = None
    steps_per_s: Limit | None = None  # of submitted tasks; what was not used for a second may be used at once
    priority_max: Priority | None = None  # of a task's priority and that of its steps together


class LimitSettings(Struct, frozen=True, forbid_unknown_fields=True):
    max_open_steps: Limit = 1_000_000
    max_active_tasks: Limit = 50_000
    active_bytes: Size = 256 * 1024 * 1024  # contexts and outputs kept in memory for active tasks
    uncommitted_bytes: Size = 64 * 1024 * 1024  # writes that wait for the database
    payload_bytes: Size = limits.MESSAGE_BYTES_MAX
    resident_payload_bytes: Size = 16 * 1024  # a larger context or output stays in the database
    steps_per_workflow: Limit = 10_000
    edges_per_workflow: Limit = 50_000
    tasks_per_batch: Limit = 10_000
    steps_per_batch: Annotated[int, Meta(ge=1, le=500_000)] = (
        100_000  # written in one transaction, from one block of ids
    )
    namespaces: dict[str, QuotaSettings] = {}


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    completed_ms: PositiveMs = 7 * 24 * 3600 * 1000
    failed_ms: PositiveMs = 30 * 24 * 3600 * 1000
    audit_ms: RetentionMs = 400 * 24 * 3600 * 1000


class SecuritySettings(Struct, frozen=True, forbid_unknown_fields=True):
    strict: bool = False
    key_file: str = ".stepwire/key"
    erasures_file: str = ".stepwire/erasures"


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    broker: BrokerSettings = BrokerSettings()
    database: DatabaseSettings = DatabaseSettings()
    bus: BusSettings = BusSettings()
    execution: ExecutionSettings = ExecutionSettings()
    executors: ExecutorsSettings = ExecutorsSettings()
    handlers: HandlersSettings = HandlersSettings()
    dispatch: DispatchSettings = DispatchSettings()
    http: HttpSettings = HttpSettings()
    limits: LimitSettings = LimitSettings()
    retention: RetentionSettings = RetentionSettings()
    security: SecuritySettings = SecuritySettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def listed(endpoints: OneOrMore) -> tuple[str, ...]:
    """The endpoints of `bus.steps` or `bus.results`, which may be one string or a list."""
    return (endpoints,) if isinstance(endpoints, str) else endpoints
