"""The breaker alone: a table of stories, and a property test against a model that is implemented differently."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stepwire_broker.core.guards.breaker import Breaker, BreakerPhase, BreakerPolicy, CircuitOpen
from stepwire_broker.core.guards.recent_counts import PIECES, Recent

START = 5_000_000
PLAIN = BreakerPolicy(failure_threshold=3, success_threshold=2, open_ms=1_000, open_max_ms=4_000)
WINDOW = BreakerPolicy(failure_threshold=99, window_ms=10_000, window_outcomes=4, window_percent=50.0)


class Story:
    """A breaker, the time, and the calls under way. `ok` and `no`: a call that succeeds or fails; `ask`: a call begins;
    `+` and `-`: the oldest call under way succeeds or fails; `0`: its outcome is unknown; a number: time passes."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self.breaker = Breaker("db", policy)
        self.mono = START
        self.calls: list[int] = []

    def run(self, words: str) -> str:
        for word in words.split():
            self._one(word)
        self.breaker.look(self.mono)
        return str(self.breaker.state)

    def _one(self, word: str) -> None:
        breaker, mono = self.breaker, self.mono
        match word:
            case "ok":
                breaker.succeeded(breaker.call(mono), mono)
            case "no":
                breaker.failed(breaker.call(mono), mono)
            case "ask":
                self.calls.append(breaker.call(mono))
            case "+":
                breaker.succeeded(self.calls.pop(0), mono)
            case "-":
                breaker.failed(self.calls.pop(0), mono)
            case "0":
                breaker.given_up(self.calls.pop(0))
            case "refused":
                with pytest.raises(CircuitOpen, match="breaker for db is open") as refused:
                    breaker.call(mono)
                assert refused.value.component == "db"
            case "force-open":
                breaker.force_open()
            case "force-closed":
                breaker.force_closed()
            case "auto":
                breaker.automatic(mono)
            case "untried":
                breaker.look(mono)
                breaker.close_untried(mono)
            case _:
                self.mono += int(word)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("no no", "closed"),
        ("no no no", "open"),
        ("no no ok no no", "closed"),  # a success resets the count
        ("no no no 999", "open"),
        ("no no no 999 refused", "open"),
        ("no no no 1000", "half_open"),
        ("no no no 1000 ask ask refused", "half_open"),  # at most `success_threshold` at a time
        ("no no no 1000 ask ask + ask refused 0 ask refused", "half_open"),
        ("no no no 1000 ok", "half_open"),
        ("no no no 1000 ok ok", "closed"),
        ("no no no 1000 ok no", "open"),  # any failure
        ("no no no 1000 no 1000", "open"),  # for twice as long
        ("no no no 1000 no 2000", "half_open"),
        ("no no no 1000 no 2000 no 4000 no 4000", "half_open"),  # up to a most
        ("no no no 1000 no 2000 no 4000 no 3999", "open"),
        ("no no no 1000 ok ok no no no 1999", "open"),  # it is the second time in a row
        ("no no no 1000 ok ok 4000 no no no 1000", "half_open"),  # it was calm for long: the first again
        ("ask no no no 1000 ask 0 ask refused", "half_open"),  # nor does it give back a place it never had
        ("ask no no no 1000 + ok", "half_open"),  # what began before it opened says nothing now
        ("ask ask ask no no no 1000 - - - ok ok", "closed"),
        ("no no no 1000 ask no - ", "open"),
        ("no no no 1000 ask 0 ok ok", "closed"),
        ("no no no 1000 untried", "closed"),
        ("no no no 1000 untried no 1999", "open"),  # one failure is enough then, and it is for longer
        ("no no no 1000 untried ok no no", "closed"),
        ("force-open 1000000 refused", "open"),
        ("ask force-open + 1000000 refused", "open"),
        ("force-closed no no no no no no", "closed"),
        ("force-open auto ok", "closed"),
        ("no no no force-closed auto no no", "closed"),
        ("no no force-closed auto no", "closed"),  # a hand off it is a new beginning
        ("force-closed no no no auto no no no 1000", "half_open"),
    ],
)
def test_the_state_after_a_story(words: str, state: str) -> None:
    assert Story(PLAIN).run(words) == state


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("ok no no", "closed"),  # too few to judge by
        ("ok no no ok", "closed"),
        ("ok ok no no", "open"),
        ("ok ok ok no no", "closed"),
        ("ok ok ok no no no", "open"),
        ("ok ok 10000 no no no", "closed"),  # what is older than the window does not count
        ("no no 10000 ok no", "closed"),
        ("ok ok no no 30000 ok ok no ok", "closed"),  # it begins to count anew
    ],
)
def test_a_share_of_failures_opens_the_breaker_too(words: str, state: str) -> None:
    assert Story(WINDOW).run(words) == state


@pytest.mark.parametrize(
    ("words", "cause"),
    [("no no no", "3 failures in a row"), ("no no no 1000 no", "a failed trial")],
)
def test_the_breaker_gives_the_cause_of_its_opening(words: str, cause: str) -> None:
    story = Story(PLAIN)
    story.run(words)
    assert story.breaker.cause == cause


def test_the_breaker_gives_the_share_that_opened_it() -> None:
    story = Story(WINDOW)
    story.run("ok ok no no")
    assert story.breaker.cause == "2 failures among 4 outcomes"


def test_jitter_shortens_the_open_time_by_a_part_that_is_equal_in_every_replay() -> None:
    policy = BreakerPolicy(failure_threshold=1, success_threshold=1, open_ms=10_000, open_max_ms=10_000, jitter=0.2)
    pauses = {}
    for component in [f"h{i}" for i in range(200)] * 2:
        breaker = Breaker(component, policy)
        breaker.failed(breaker.call(0), 0)
        assert pauses.setdefault(component, breaker.pause_ms) == breaker.pause_ms
    assert 8_000 <= min(pauses.values()) < 8_600
    assert 9_600 < max(pauses.values()) <= 10_000


def test_a_breaker_without_recent_failures_is_calm() -> None:
    story = Story(PLAIN)
    assert story.breaker.is_calm(story.mono)
    story.run("no no no")
    assert not story.breaker.is_calm(story.mono)
    story.run("1000 ok ok 3999")
    assert not story.breaker.is_calm(story.mono)
    story.run("1")
    assert story.breaker.is_calm(story.mono)
    story.run("force-closed")
    assert not story.breaker.is_calm(story.mono)


# -- the window -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_ms", [1, 7, 10, 1_000, 60_000])
def test_a_sum_covers_nine_to_ten_tenths_of_the_window(window_ms: int) -> None:
    recent = Recent(window_ms, 1)
    length_ms = recent.piece_ms * PIECES
    events: list[int] = []
    for i in range(400):
        mono = START + i * max(1, window_ms // 37)
        recent.add(0, mono)
        events.append(mono)
        least = sum(at > mono - length_ms + recent.piece_ms for at in events)
        most = sum(at > mono - length_ms for at in events)
        assert least <= recent.sum(0, mono) <= most
    assert recent.sum(0, mono + 100 * length_ms) == 0


# -- the model --------------------------------------------------------------------------------------------------------


class Model(RuleBasedStateMachine):
    """The same rules, evaluated over the whole history each time."""

    @initialize(threshold=st.integers(1, 4), needed=st.integers(1, 3), window=st.booleans())
    def begin(self, threshold: int, needed: int, window: bool) -> None:
        self.policy = BreakerPolicy(
            failure_threshold=threshold,
            success_threshold=needed,
            open_ms=1_000,
            open_max_ms=8_000,
            window_ms=10_000 if window else None,
            window_outcomes=6,
            window_percent=50.0,
        )
        self.breaker = Breaker("x", self.policy)
        self.mono = START
        self.state = "closed"
        self.forced = False
        self.since = 0  # which change of state this is
        self.outcomes: list[tuple[int, bool]] = []  # in this state
        self.out: list[tuple[int, int]] = []  # calls under way: the breaker's number, and `since`
        self.until = 0
        self.marks: list[tuple[str, int]] = []  # opened and closed since it was last calm, when
        self.lent = 0

    def turn(self, state: str) -> None:
        self.state, self.outcomes, self.lent = state, [], 0
        self.since += 1
        if state == "closed":
            self.marks.append(("closed", self.mono))

    def open(self) -> None:
        calm = [at for what, at in self.marks[-1:] if what == "closed" and self.mono - at >= 8_000]
        if calm and self.state == "closed":
            self.marks = []
        doubled = [what for what, _ in self.marks].count("opened")
        self.marks.append(("opened", self.mono))
        self.until = self.mono + min(1_000 * 2**doubled, 8_000)
        self.turn("open")

    def look(self) -> None:
        if self.state == "open" and not self.forced and self.mono >= self.until:
            self.turn("half_open")

    @rule(ms=st.sampled_from((1, 300, 1_000, 3_000, 8_000, 12_000)))
    def pass_time(self, ms: int) -> None:
        self.mono += ms

    @rule()
    def call(self) -> None:
        self.look()
        may = self.state == "closed" or (self.state == "half_open" and self.lent < self.policy.success_threshold)
        if may:
            self.out.append((self.breaker.call(self.mono), self.since))
            self.lent += 1
        else:
            with pytest.raises(CircuitOpen):
                self.breaker.call(self.mono)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), how=st.sampled_from(("good", "good", "bad", "nothing")))
    def end(self, data: Any, how: str) -> None:
        number, since = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        tell = {"good": self.breaker.succeeded, "bad": self.breaker.failed}.get(how)
        if tell is not None:
            tell(number, self.mono)
        else:
            self.breaker.given_up(number)
        if since != self.since or self.forced:
            return
        self.lent -= self.state == "half_open"
        if how == "nothing":
            return
        self.outcomes.append((self.mono, how == "good"))
        if self.state == "half_open":
            if how == "bad":
                self.open()
            elif sum(good for _, good in self.outcomes) == self.policy.success_threshold:
                self.turn("closed")
        elif how == "bad" and (self.row() >= self.policy.failure_threshold or self.share()):
            self.open()

    def row(self) -> int:
        row = 0
        for _, good in reversed(self.outcomes):
            if good:
                break
            row += 1
        return row

    def share(self) -> bool:
        if self.policy.window_ms is None:
            return False
        newest = self.mono // 1_000
        lately = [good for at, good in self.outcomes if at // 1_000 > newest - 10]
        return len(lately) >= 6 and 2 * lately.count(False) >= len(lately)

    @rule(to=st.sampled_from(("open", "closed", "auto")))
    def put(self, to: str) -> None:
        if to == "open":
            self.breaker.force_open()
            self.turn("open")
        elif to == "closed":
            self.breaker.force_closed()
            self.marks = []
            self.turn("closed")
        else:
            self.breaker.automatic(self.mono)
            self.marks = []
            self.turn("closed")
        self.forced = to != "auto"

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "breaker"):
            return
        assert self.breaker.state == self.state
        assert self.breaker.under_way == (self.lent if self.state == "half_open" else 0)
        if self.state == "open" and not self.forced:
            assert self.breaker.until_mono == self.until
        assert self.breaker.room in (None, 0) or self.state is not BreakerPhase.CLOSED


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
