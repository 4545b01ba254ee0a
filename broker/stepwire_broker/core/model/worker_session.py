"""Sessions made from hellos, and the names of workers inside the broker's process.

The broker's side of a lease ends 3 % after the worker's: the worker counts from its send, the broker from its receipt.
Therefore a worker starts no step of a session that is dead at the broker.
"""

from collections.abc import Iterable
from typing import Final

from stepwire_protocol import patterns, topics
from stepwire_protocol.messages import Hello

from .live import ExecutorState, WorkerSession
from .principal import Rights

NAME_MAX: Final = 48  # characters of a worker's id before its digits


def own_worker(executor: str, broker: str, epoch: int, entropy: int) -> str:
    """The id of a worker inside the broker's process. The id contains the epoch, so that the broker's next process
    knows that this worker is dead, and `entropy`, 32 random bits."""
    return f"{_inner_name(executor, broker)}:{epoch & _HALF:08x}{entropy & _HALF:08x}"


def died_with(worker: str, broker: str, epoch: int) -> bool:
    """True if this worker ran inside an earlier process of this broker. Other worker ids contain random digits."""
    name, _, digits = worker.partition(":")
    return name.endswith(f".{broker}") and int(digits[:8], 16) < epoch


def is_inner_name(worker: str, broker: str, executors: Iterable[str]) -> bool:
    """True if this id has the name of a worker inside the broker's process."""
    name = worker.partition(":")[0]
    return name.endswith(f".{broker}") and any(name == _inner_name(executor, broker) for executor in executors)


def _inner_name(executor: str, broker: str) -> str:
    return f"{executor[: NAME_MAX - 1 - len(broker)]}.{broker}"


_HALF: Final = (1 << 32) - 1  # of the digits of an id


def opened(
    hello: Hello, k: int, epoch: int, broker: str, of: ExecutorState, rights: Rights, mono: int, wall: int
) -> WorkerSession:
    return WorkerSession(
        worker=hello.worker,
        k=k,
        id=topics.session_id(epoch, k),
        offers=patterns.any_of(hello.handlers),
        is_shadow_safe=patterns.any_of(hello.shadow_safe),
        handlers=list(hello.handlers),
        offers_any=not all(map(patterns.has_literal_part, hello.handlers)),
        labels=dict(hello.labels),
        slots=hello.slots,
        prefetch=hello.prefetch,
        heartbeat_ms=hello.heartbeat_ms,
        max_message_bytes=hello.max_message_bytes,
        lang=hello.lang,
        sdk=hello.sdk,
        host=hello.host,
        pid=hello.pid,
        pid_started=hello.pid_started,
        proof=hello.proof,
        since_wall=wall,
        heard_mono=mono,
        reported_mono=mono,
        reported_n=-1,
        topic=topics.to_worker(hello.worker),
        of=of,
        principal=rights.grant.principal,
        rights=rights,
        free=hello.free.get(broker, 0),
        slots_free=hello.slots_free.get(broker),
        free_n=hello.n,
        idle_since_mono=mono,
    )
