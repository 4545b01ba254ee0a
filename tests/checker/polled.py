"""The sessions of workers over HTTP. Each is with one process of one broker, and its lease ends with that process."""

from bisect import bisect_right
from collections import defaultdict
from typing import Final, NamedTuple

from . import ledgers as lines
from .ledgers import Ledgers

FOR_EVER: Final = 2**63
WORKER_FACTOR: Final = 0.97  # a worker's own lease ends this much of a lease after its last renewed beat was sent
SAFE_FACTOR: Final = 1.03  # a new owner of a lane waits this much of a lease before it takes a run back


class Session(NamedTuple):
    """A session of a worker, by the beats that came back: when each of them was sent."""

    broker: str
    beats: list[int]


class PolledSessions:
    def __init__(self, ledgers: Ledgers, lease_ns: int) -> None:
        self._least = int(lease_ns * WORKER_FACTOR)
        self._safe = int(lease_ns * SAFE_FACTOR)
        self.workers: dict[str, int] = {}  # the process of each worker over HTTP
        self._sessions: dict[int, dict[str, Session]] = defaultdict(dict)  # by process, by id
        self._given_in: dict[tuple[int, int, int], str] = {}  # by step, delivery and process
        self._brokers: list[tuple[int, str, int]] = []  # since when, its id if it has a name, its process
        self._out: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by process of a broker
        self._owners: dict[int, list[tuple[int, str | None]]] = defaultdict(list)  # by lane
        self._read_workers(ledgers)
        self._read_faults(ledgers)

    def _read_workers(self, ledgers: Ledgers) -> None:
        sent: dict[tuple[int, int], int] = {}
        for line in ledgers.wire:
            match line:
                case lines.Beat():
                    sent[line.pid, line.n] = line.at
                case lines.BeatHeard() if line.session and (line.pid, line.n) in sent:
                    self.workers[line.worker] = line.pid
                    session = self._sessions[line.pid].setdefault(line.session, Session(line.broker, []))
                    session.beats.append(sent[line.pid, line.n])
                case lines.Go() if line.session:
                    for step_id, delivery in line.items:
                        self._given_in[step_id, delivery, line.pid] = line.session
        for started in ledgers.handlers:
            if isinstance(started, lines.Started) and started.session:
                self._given_in[started.step_id, started.delivery, started.pid] = started.session
        for sessions in self._sessions.values():
            for session in sessions.values():
                session.beats.sort()

    def _read_faults(self, ledgers: Ledgers) -> None:
        """Collect when each process of a broker was dead, suspended, or without its database."""
        began: dict[tuple[int, type], int] = {}
        pids: set[int] = set()

        def end(pid: int, kind: type, at: int) -> None:
            if (pid, kind) in began:
                self._out[pid].append((began.pop((pid, kind)), at))

        for line in ledgers.faults:
            if line.role == "broker":
                pids.add(line.pid)
            match line:
                case lines.Named():
                    self._brokers.append((line.at, line.broker, line.pid))
                case lines.ProcessStarted() if line.role == "broker":
                    self._brokers.append((line.at, "", line.pid))
                case lines.Killed() | lines.ProcessEnded():
                    self._out[line.pid].append((line.at, FOR_EVER))
                case lines.Paused() | lines.Cut() | lines.Away():
                    began.setdefault((line.pid, type(line)), line.at)
                case lines.Resumed():
                    end(line.pid, lines.Paused, line.at)
                case lines.Healed():
                    end(line.pid, lines.Cut, line.at)
                case lines.Back():
                    end(line.pid, lines.Away, line.at)
                case lines.Owned():
                    self._owners[line.lane].append((line.at, line.broker))
        for (pid, _), at in began.items():
            self._out[pid].append((at, FOR_EVER))
        for pid in pids:  # the server's outages have the process 0
            self._out[pid] += self._out.get(0, [])

    def has_lost_its_broker(self, pid: int, item: tuple[int, int], lane: int, since: int, until: int) -> bool:
        """Return whether the worker's session in which it has this delivery, with one broker, had no renewed beat for
        a whole lease before `until`, because that broker was dead, suspended, or without its database.

        Another broker that owns the lane may take the run back then, but not if the worker had a session with that
        owner too, for long enough: it goes on there.
        """
        sessions = self._sessions.get(pid)
        if not sessions or self._goes_on_at_the_owner(sessions, lane, until):
            return False
        given_in = self._given_in.get((*item, pid))
        looked_at = sessions.values() if given_in not in sessions else [sessions[given_in]]
        return any(self._was_lost(session, since, until) for session in looked_at)

    def _was_lost(self, session: Session, since: int, until: int) -> bool:
        process = self._process_of(session)
        for begin, end in zip(session.beats, [*session.beats[1:], FOR_EVER], strict=True):
            last = min(end, until)
            is_over = last - begin >= self._least and end >= since
            if is_over and any(out <= last and back >= begin for out, back in self._out.get(process, ())):
                return True
        return False

    def _process_of(self, session: Session) -> int:
        """Return the process of the session's broker: the one that had started last when the session began."""
        named = [each for each in self._brokers if each[1] == session.broker] or self._brokers
        return max((each for each in named if each[0] <= session.beats[0]), default=(0, "", 0))[2]

    def _goes_on_at_the_owner(self, sessions: dict[str, Session], lane: int, until: int) -> bool:
        """Return whether the lane had one owner for as long as it has to wait before it takes a run back, and the
        worker had a session with that owner all the time."""
        since = until - self._safe
        if all(session.beats[0] > until for session in sessions.values()):
            return False
        owners = self._owners.get(lane, [])
        now, then = (bisect_right(owners, at, key=_at) - 1 for at in (until, since))
        if then < 0 or now != then:
            return False
        begun = [session for session in sessions.values() if session.beats[0] <= until]
        last = max(begun, key=lambda session: session.beats[bisect_right(session.beats, until) - 1])
        return last.broker == owners[then][1] and last.beats[0] <= since and self._is_renewed(last, since, until)

    def _is_renewed(self, session: Session, since: int, until: int) -> bool:
        """Return whether the session had no gap of a lease in this time."""
        beats = [at for at in session.beats if at <= until]
        first = max(bisect_right(beats, since) - 1, 0)
        return all(b - a < self._least for a, b in zip(beats[first:], [*beats[first + 1 :], until], strict=True))


def _at(owner: tuple[int, str | None]) -> int:
    return owner[0]
