"""Permissions of tokens."""

import enum
from collections.abc import Set
from typing import Final


class Scope(enum.StrEnum):
    """A permission of a token. ADMIN includes all others, and READ includes METRICS; no other scope includes one."""

    READ = "read"  # read states, names and times of tasks, steps, workflows and workers; events without payloads; why
    INSPECT = "inspect"  # with READ: see contexts, outputs, handler configuration, backtraces and standard error
    SUBMIT = "submit"  # submit tasks
    WORK = "work"  # lease steps over HTTP and report their results
    OPERATE = "operate"  # cancel, pause, resume, retry, resolve; drain workers; with INSPECT: the messages of the bus
    METRICS = "metrics"  # read the metrics, and how much work waits for workers
    ADMIN = "admin"  # everything; the only scope that allows applying and activating workflows, and pruning


_INCLUDED_IN: Final[dict[Scope, frozenset[Scope]]] = {
    scope: frozenset({scope, Scope.ADMIN, *([Scope.READ] if scope is Scope.METRICS else [])}) for scope in Scope
}


def includes(scopes: Set[Scope], needed: Scope) -> bool:
    """True if one of these scopes is the needed one, or includes it."""
    return not _INCLUDED_IN[needed].isdisjoint(scopes)
