"""Whether the death of a worker's process can be proven, and if not, why: the text for `doctor` and `worker show`."""

import re
from typing import Final

from .live import WorkerSession

_HOST: Final = re.compile(r"[0-9a-f-]{36}:[0-9]+:[0-9]+")
OTHER_HOST: Final = "it runs on another host"


def why_unprovable(session: WorkerSession, host: str) -> str | None:
    """Return None if the operating system can prove the death of this worker, otherwise the reason why it cannot.

    `host`: the identity of the broker's host, "" if that is unknown.
    """
    if not host:
        return "the broker cannot read /proc of its own host"
    if session.host != host:
        return OTHER_HOST if _HOST.fullmatch(session.host) else _unknown_form(session.host)
    if not session.pid or not session.pid_started:
        return "its hello lacks the pid or the start time of its process"
    if session.is_claim_refuted:
        return (
            "the process with its pid started at another time than its hello states:"
            " `pid_started` is in clock ticks after boot, as in /proc/<pid>/stat"
        )
    if not session.proof:
        return "its hello has `proof` false: handler processes may outlive it"
    return None


def _unknown_form(host: str) -> str:
    if not host:
        return "its hello has no `host`"
    return f"its `host` is {host[:80]!r} and has not the form <boot id>:<pid namespace>:<time namespace>"
