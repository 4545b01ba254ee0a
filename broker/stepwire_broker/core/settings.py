"""The typed configuration. Every key, its default and its unit; `stepwire.yaml` has the same shape."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct
from stepwire_protocol import limits
from stepwire_protocol.messages import BrokerId

Ms: TypeAlias = Annotated[int, Meta(ge=0, le=366 * 24 * 3600 * 1000)]
PositiveMs: TypeAlias = Annotated[int, Meta(ge=1, le=366 * 24 * 3600 * 1000)]
Size: TypeAlias = Annotated[int, Meta(ge=1, le=limits.INTEGER_MAX)]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=limits.INTEGER_MAX)]


class BrokerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    id: BrokerId = "b1"
    drain_timeout_ms: Ms = 30_000


class DatabaseSettings(Struct, frozen=True, forbid_unknown_fields=True):
    url: str = "sqlite:///.stepwire/state.db"
    pool_size: Annotated[int, Meta(ge=1, le=64)] = 4
    listen_url: str | None = None


class BatchSettings(Struct, frozen=True, forbid_unknown_fields=True):
    max_steps: Annotated[int, Meta(ge=1, le=limits.BATCH_ITEMS_MAX)] = 10
    max_bytes: Size = 1024 * 1024
    linger_ms: Ms = 0


class CurveSettings(Struct, frozen=True, forbid_unknown_fields=True):
    secret_file: str | None = None
    clients_dir: str | None = None


class Level0Settings(Struct, frozen=True, forbid_unknown_fields=True):
    handlers: tuple[str, ...] = ("**",)
    at_most_once: bool = False
    batch_max_steps: Limit = 1


class BusSettings(Struct, frozen=True, forbid_unknown_fields=True):
    steps: str = "ipc://.stepwire/steps.sock"
    results: str = "ipc://.stepwire/results.sock"
    batch: BatchSettings = BatchSettings()
    heartbeat_ms: PositiveMs = limits.HEARTBEAT_MS
    lease_ms: PositiveMs = limits.LEASE_MS
    steps_hwm: Limit = 1000
    results_hwm: Limit = 10_000
    curve: CurveSettings = CurveSettings()
    level0: Level0Settings = Level0Settings()
    allow_insecure: bool = False
    advertise: str | None = None  # the host that workers are told, where what is listened on is not what they reach
    lost_sessions_max: Limit = 3
    max_message_bytes: Size = limits.MESSAGE_BYTES_MAX


class HttpSettings(Struct, frozen=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:7410"
    tokens_file: str | None = None
    hosts: tuple[str, ...] = ()  # names, besides `listen` and the loopback, that a request's Host may say
    allow_insecure: bool = False  # listen beyond the loopback: a proxy ends TLS, or the network is trusted


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


class RetentionSettings(Struct, frozen=True, forbid_unknown_fields=True):
    completed_ms: PositiveMs = 7 * 24 * 3600 * 1000
    failed_ms: PositiveMs = 30 * 24 * 3600 * 1000


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    broker: BrokerSettings = BrokerSettings()
    database: DatabaseSettings = DatabaseSettings()
    bus: BusSettings = BusSettings()
    http: HttpSettings = HttpSettings()
    limits: LimitSettings = LimitSettings()
    retention: RetentionSettings = RetentionSettings()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
