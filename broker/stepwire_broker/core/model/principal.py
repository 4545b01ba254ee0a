"""Principals and their grants: which identity may send what, and which steps it may receive.

A principal is the identity that a connection proves: the name of a client file, an account of this host, or one of the
three names below. Names inside a message are claims; a grant limits which of them the principal may make.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct
from stepwire_protocol import patterns

PROCESS: Final = "process"  # a worker inside the broker's own process
OWNER: Final = "owner"  # the broker's own account, over ipc
ANONYMOUS: Final = "anonymous"  # a connection that proves nothing: tcp without keys
BUILT_IN: Final = frozenset({PROCESS, OWNER, ANONYMOUS})  # no client file may have one of these names
NO_PRINCIPAL: Final = ""  # a connection without a principal: everything that it sends is refused

ANY_LABEL: Final = ("*", "*")
SESSIONS_DEFAULT: Final = 64
SLOTS_DEFAULT: Final = 10_000
SESSIONS_MAX: Final = 10_000  # of one broker
SLOTS_MAX: Final = 10_000_000


class Grant(Struct, frozen=True, kw_only=True):
    """The rights of one principal, as its client file, its token or the broker states them.

    Patterns of `workers` match the part of a worker's id before its colon, and `*` is their only special character.
    Patterns of `handlers` and `namespaces` are those of the protocol. A label of a worker must be in `labels`, where
    the value `*` allows every value, and `*=*` every label.
    """

    principal: str
    workers: tuple[str, ...] = ()
    handlers: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = (patterns.ANY,)
    labels: tuple[tuple[str, str], ...] = ()
    level0: bool = False
    sessions: int = SESSIONS_DEFAULT
    slots: int = SLOTS_DEFAULT  # of one session
    messages_per_s: int | None = None  # None: the default of the bus
    bytes_per_s: int | None = None
    expires_ms: int | None = None  # UTC
    identities: str = ""  # a digest of its keys and users, so that another key is another grant


def full_grant(principal: str) -> Grant:
    return Grant(
        principal=principal,
        workers=("*",),
        handlers=(patterns.ANY,),
        labels=(ANY_LABEL,),
        level0=True,
        sessions=SESSIONS_MAX,
        slots=SLOTS_MAX,
    )


def with_built_in(configured: Iterable[Grant] = (), *, allows_anonymous: bool = True) -> tuple[Grant, ...]:
    """Return the configured grants and those of the built-in principals."""
    built_in = (PROCESS, OWNER, ANONYMOUS) if allows_anonymous else (PROCESS, OWNER)
    return (*map(full_grant, built_in), *configured)


class Rights:
    """A grant, compiled for the questions that the broker asks about it."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.allows_worker: Final = patterns.any_of(grant.workers)
        self.allows_handler: Final = patterns.any_of(grant.handlers)
        self.allows_namespace: Final = patterns.any_of(grant.namespaces)
        self.is_for_all_handlers: Final = patterns.ANY in grant.handlers
        self.is_for_all_namespaces: Final = patterns.ANY in grant.namespaces
        self._handlers = [patterns.compile_pattern(text) for text in grant.handlers]
        self._labels = frozenset(grant.labels)

    def allows(self, handler_class: str, namespace: str | None) -> bool:
        """True if steps of this handler in this namespace are granted. None: every grant is for all namespaces."""
        return (self.is_for_all_handlers or self.allows_handler(handler_class)) and (
            namespace is None or self.is_for_all_namespaces or self.allows_namespace(namespace)
        )

    def covers(self, offered: str) -> bool:
        """True if every handler that this name or pattern matches is granted."""
        if self.is_for_all_handlers:
            return True
        narrow = patterns.compile_pattern(offered)
        return any(patterns.covers(wide, narrow) for wide in self._handlers)

    def allows_label(self, key: str, value: str) -> bool:
        labels = self._labels
        return (key, value) in labels or (key, "*") in labels or ANY_LABEL in labels


Principals: TypeAlias = Mapping[str, Rights]  # by name


def compile_grants(grants: Iterable[Grant]) -> Principals:
    return {grant.principal: Rights(grant) for grant in grants}
