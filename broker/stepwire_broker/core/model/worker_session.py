"""Sessions made from hellos, and the names of workers inside the broker's process.

The broker's side of a lease ends 3 % after the worker's: the worker counts from its send, the broker from its receipt.
Therefore a worker starts no step of a session that is dead at the broker.
"""

from collections.abc import Callable, Iterable
from typing import Final

from stepwire_protocol import patterns, topics
from stepwire_protocol.messages import Hello

from .live import ExecutorState, WorkerSession

NAME_MAX: Final = 48  # characters of a worker's id before its digits


def own_worker(executor: str, broker: str, epoch: int, number: int) -> str:
    """The id of a worker inside the broker's process. The id contains the epoch, so that the broker's next process
    knows that this worker is dead."""
    return f"{executor[: NAME_MAX - 1 - len(broker)]}.{broker}:{epoch:012x}{number:04x}"


def died_with(worker: str, broker: str, epoch: int) -> bool:
    """True if this worker ran inside an earlier process of this broker. Other worker ids contain random digits."""
    name, _, digits = worker.partition(":")
    return name.endswith(f".{broker}") and int(digits[:12], 16) < epoch


def opened(hello: Hello, k: int, epoch: int, broker: str, of: ExecutorState, mono: int, wall: int) -> WorkerSession:
    return WorkerSession(
        worker=hello.worker,
        k=k,
        id=topics.session_id(epoch, k),
        offers=offer_of(hello.handlers),
        is_shadow_safe=offer_of(hello.shadow_safe),
        handlers=list(hello.handlers),
        offers_any=not all(map(has_literal_part, hello.handlers)),
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
        free=hello.free.get(broker, 0),
        slots_free=hello.slots_free.get(broker),
        free_n=hello.n,
        idle_since_mono=mono,
    )


def has_literal_part(text: str) -> bool:
    """True for a handler class, and for a pattern with a character that is neither a star nor a separator."""
    return bool(text.strip("*:"))


def offer_of(handlers: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that is true for a handler_class that one of these names or patterns matches."""
    exact = frozenset(h for h in handlers if "*" not in h)
    globs = [patterns.compile_pattern(h) for h in handlers if "*" in h]

    def offers(handler_class: str) -> bool:
        return handler_class in exact or any(g.matches(handler_class) for g in globs)

    return offers
