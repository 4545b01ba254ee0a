"""The lines of the ledgers, one struct for each `event`. tests/checker/README.md describes the format.

A line that a kill cut short is the last of its file and is left out. Unknown events are only counted: a ledger may hold
more than the judge needs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct


class Line(Struct, tag_field="event", gc=False, kw_only=True):
    at: int  # CLOCK_BOOTTIME, nanoseconds: the same clock for every process of the machine
    wall: int = 0  # UTC, nanoseconds; 0: not recorded


# -- clients ----------------------------------------------------------------------------------------------------------


class Asked(Line, tag="asked"):
    key: str
    namespace: str = "default"


class AskedMany(Line, tag="asked_many"):
    keys: list[str]
    namespace: str = "default"


class Acknowledged(Line, tag="acknowledged"):
    key: str
    task_id: int
    created: bool = True
    namespace: str = "default"


class AcknowledgedMany(Line, tag="acknowledged_many"):
    keys: list[str]
    task_ids: list[int]
    namespace: str = "default"


class NotAcknowledged(Line, tag="not_acknowledged"):
    key: str
    status: int = 0
    code: str | None = None


class NotAcknowledgedMany(Line, tag="not_acknowledged_many"):
    keys: list[str]
    status: int = 0
    code: str | None = None


class Ordered(Line, tag="ordered"):
    """An operator sends a command: cancel, pause, resume, retry, resolve. The broker may execute it or not."""

    order: str
    task_id: int | None = None
    step_id: int | None = None


class Observed(Line, tag="observed"):
    """A client was shown a task in a state that is final."""

    task_id: int
    state: str


ClientLine: TypeAlias = (
    Asked | AskedMany | Acknowledged | AcknowledgedMany | NotAcknowledged | NotAcknowledgedMany | Ordered | Observed
)


# -- handlers ---------------------------------------------------------------------------------------------------------


class RunLine(Line):
    step_id: int
    pid: int
    delivery: int = 0  # a level-0 handler receives none: the history has it, by the batch
    batch_id: str | None = None  # of a level-0 handler only
    task_id: int = 0
    step: str = ""
    attempt: int = 0


class Started(RunLine, tag="started"):
    """The handler's first instruction."""

    mode: str = "at_least_once"
    key: str = ""
    session: str = ""  # over HTTP: in which the step was handed out
    seen: dict[str, str | None] = {}  # by step name: the token in the output that the handler was given


class Effect(RunLine, tag="effect"):
    """The step's effect happened here."""

    key: str = ""


class Finished(RunLine, tag="finished"):
    """About to return its output."""


class Failed(RunLine, tag="failed"):
    """About to report a failure."""


class Stopped(RunLine, tag="stopped"):
    """The handler was asked to stop, and stops."""

    reason: str | None = None


HandlerLine: TypeAlias = Started | Effect | Finished | Failed | Stopped
EndLine: TypeAlias = Finished | Failed | Stopped


# -- the wire, as a worker sees it ------------------------------------------------------------------------------------

Item: TypeAlias = tuple[int, int]  # step_id, delivery


class GivenStep(Struct, array_like=True, gc=False):
    step_id: int
    delivery: int
    attempt: int
    inputs: dict[str, int]  # CRC-32 of the compact JSON of each previous result


class SentResult(Struct, array_like=True, gc=False):
    step_id: int
    delivery: int
    status: str
    code: str | None
    bytes: int  # of the compact JSON of the output
    crc32: int


class WireLine(Line):
    pid: int
    worker: str


class Received(WireLine, tag="received"):
    batch_id: str
    items: list[GivenStep]


class AskedToStart(WireLine, tag="asked_to_start"):
    items: list[Item]


class Go(WireLine, tag="go"):
    items: list[Item]
    session: str = ""  # over HTTP


class ToldToStop(WireLine, tag="told_to_stop"):
    items: list[Item]
    reason: str


class GivenBack(WireLine, tag="given_back"):
    items: list[Item]
    code: str


class ResultsSent(WireLine, tag="results_sent"):
    rid: int
    results: list[SentResult]


class ResultsAcked(WireLine, tag="results_acked"):
    rids: list[int]


class Beat(WireLine, tag="beat"):
    """A hello or heartbeat left; over HTTP, a call that renews the lease."""

    n: int


class BeatHeard(WireLine, tag="beat_heard"):
    """The echo of beat `n` came back. Over HTTP it names the session, which is with one broker."""

    n: int
    session: str = ""
    broker: str = ""


WireEvent: TypeAlias = (
    Received | AskedToStart | Go | ToldToStop | GivenBack | ResultsSent | ResultsAcked | Beat | BeatHeard
)


# -- faults and commits -----------------------------------------------------------------------------------------------


class FaultLine(Line):
    role: str
    pid: int
    program: str = ""


class ProcessStarted(FaultLine, tag="started"):
    pass


class Killed(FaultLine, tag="killed"):
    """Written before the signal."""


class Paused(FaultLine, tag="paused"):
    """Written before the signal."""


class Resumed(FaultLine, tag="resumed"):
    """Written after the signal."""


class AskedToEnd(FaultLine, tag="asked_to_end"):
    pass


class ProcessEnded(FaultLine, tag="ended"):
    code: int = 0


class Restored(FaultLine, tag="restored"):
    """A backup took the place of the database. `pid` is 0."""


class Named(FaultLine, tag="named", kw_only=True):
    """A process is the broker with this id, one of several."""

    broker: str


class Owned(FaultLine, tag="owned", kw_only=True):
    """A lane was seen with this owner, None for no owner. `pid` is 0."""

    lane: int
    broker: str | None


class Away(FaultLine, tag="away"):
    """The database's server is about to end. `pid` is 0."""


class Back(FaultLine, tag="back"):
    """The database's server accepts connections again."""


class Cut(FaultLine, tag="cut"):
    """Nothing passes between this broker and its database any longer, in one direction at least."""


class Healed(FaultLine, tag="healed"):
    pass


FaultEvent: TypeAlias = (
    Restored
    | ProcessStarted
    | Killed
    | Paused
    | Resumed
    | AskedToEnd
    | ProcessEnded
    | Named
    | Owned
    | Away
    | Back
    | Cut
    | Healed
)


class CommitDone(Line, tag="committed"):
    """COMMIT has returned, and no other thread or process knows yet."""

    lane: int
    seq: int


class Ledgers(Struct):
    """All lines, each kind in the order of its times."""

    clients: list[ClientLine]
    handlers: list[HandlerLine]
    wire: list[WireEvent]
    faults: list[FaultEvent]
    commits: list[CommitDone]
    unknown: int = 0  # lines with an unknown event
    files: int = 0
    left_out: int = 0  # lines about states later than the reading of the database

    @property
    def count(self) -> int:
        return len(self.clients) + len(self.handlers) + len(self.wire) + len(self.faults) + len(self.commits)


_DECODERS: Final = {
    "client": ("clients", msgspec.json.Decoder(ClientLine)),
    "worker": ("handlers", msgspec.json.Decoder(HandlerLine)),
    "wire": ("wire", msgspec.json.Decoder(WireEvent)),
    "faults": ("faults", msgspec.json.Decoder(FaultEvent)),
    "commits": ("commits", msgspec.json.Decoder(CommitDone)),
}


class UnreadableLedger(Exception):
    """A complete line does not have the format of README.md."""


# Lines that can only follow a commit.
AFTER_ITS_COMMIT: Final = (Acknowledged, AcknowledgedMany, Observed, Started, Received, Go, ResultsAcked, CommitDone)


def read(paths: Path | Sequence[Path], seen_at_wall_ns: int = 2**63) -> Ledgers:
    """Read ledgers: files, or directories of them. The part of a file's name before its first `-` is its kind.

    `seen_at_wall_ns` is when the database was read. A broker may go on after that, so lines about later states are
    left out.
    """
    ledgers = Ledgers([], [], [], [], [])
    for path in _files([paths] if isinstance(paths, Path) else paths):
        kind = path.name.partition("-")[0]
        if kind not in _DECODERS:
            continue
        into, decoder = _DECODERS[kind]
        ledgers.files += 1
        getattr(ledgers, into).extend(_lines(path, decoder, ledgers))
    for kind, _ in _DECODERS.values():
        lines: list[Line] = getattr(ledgers, kind)
        lines.sort(key=_at)
        if lines and lines[-1].wall > seen_at_wall_ns:
            counted = len(lines)
            lines[:] = [x for x in lines if x.wall <= seen_at_wall_ns or not isinstance(x, AFTER_ITS_COMMIT)]
            ledgers.left_out += counted - len(lines)
    return ledgers


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.jsonl"))
        else:
            yield path


def _lines(path: Path, decoder: "msgspec.json.Decoder[Line]", ledgers: Ledgers) -> list[Line]:
    whole = path.read_bytes().rpartition(b"\n")[0]
    try:
        return decoder.decode_lines(whole)
    except msgspec.DecodeError:
        return [line for each in whole.split(b"\n") if (line := _line(path, each, decoder, ledgers)) is not None]


def _line(path: Path, text: bytes, decoder: "msgspec.json.Decoder[Line]", ledgers: Ledgers) -> Line | None:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        if "Invalid value" in str(error) and "$.event" in str(error):
            ledgers.unknown += 1
            return None
        raise UnreadableLedger(f"{path.name}: {error}: {text[:300]!r}") from error
    except msgspec.DecodeError as error:
        raise UnreadableLedger(f"{path.name}: {error}: {text[:300]!r}") from error


def _at(line: Line) -> int:
    return line.at
