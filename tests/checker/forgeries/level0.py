"""Forgeries of runs at level 0."""

from .forger import SECOND_NS, Forger, Line, add, later, member, nothing, removed, replaced, twice, with_members
from .runs import AGAIN, EARLY, ONCE, OVERLAP, RUN

LANGUAGE_ONCE = "a_granted_delivery_is_not_dispatched_again"

add("one level-0 batch run twice", "a_delivery_runs_once", lambda f: f.run("looped-0", "pay", "started", twice()))
add(
    "a level-0 at_most_once step started twice",
    ONCE,
    lambda f: f.run("looped-0", "pay", "started", twice(batch_id="batch_2")),
)
add(
    "a level-0 at_most_once step started again when its lease was over",
    ONCE,
    lambda f: f.run("unanswered-0", "pay", "started", lambda x: [x, later(6 * SECOND_NS)(x | {"batch_id": "batch_2"})]),
)
add(
    "a level-0 step run again before its lease was over",
    AGAIN,
    lambda f: f.run("late-1", "a", "started", lambda x: _sooner(f, x), attempt=0),
)
add(
    "a level-0 run that went on when its step ran elsewhere, before its lease was over",
    OVERLAP,
    lambda f: f.run("late-0", "a", "started", lambda x: _sooner(f, x), attempt=0),
)
add("a failed level-0 run that had finished", AGAIN, lambda f: f.run("looped-0", "a", "failed", _as_finished))
add(
    "a run of a batch that was never made", RUN, lambda f: f.run("looped-0", "a", "started", with_members(batch_id="b"))
)
add("a level-0 run that was never granted", RUN, lambda f: f.history("looped-0", removed("granted")))
add(
    "a level-0 delivery that a worker ran",
    RUN,
    lambda f: f.run("looped-0", "pay", "started", lambda x: _without(x, "batch_id") | {"delivery": 1}),
)
add(
    "an unsent batch that was run",
    RUN,
    lambda f: f.history("late-0", member("undelivered", 0, 4, "unsent")),
)
add(
    "a granted level-0 delivery dispatched again",
    LANGUAGE_ONCE,
    lambda f: f.history("unanswered-0", replaced("held", 0, ["undelivered", 0, 1, "unanswered", True])),
)
add(
    "a granted delivery to a worker that never left",
    LANGUAGE_ONCE,
    lambda f: f.history("held-0", replaced("held", 0, ["undelivered", 0, 1, "unsent", False])),
)
add(
    "a level-0 step held before its lease was over",
    "a_held_step_has_a_cause",
    lambda f: f.run("unanswered-0", "pay", "started", later(3 * SECOND_NS)),
)
add(
    "a level-0 start with another step's output",
    EARLY,
    lambda f: f.run("looped-0", "pay", "started", with_members(seen={"a": "1/batch_1/1"})),
)
add(
    "an output that no level-0 handler made",
    "an_outcome_is_what_its_handler_returned",
    lambda f: f.run("looped-0", "pay", "finished", nothing),
)
add(
    "a level-0 run before its dispatch was committed",
    "nothing_is_sent_before_its_commit",
    lambda f: f.run("looped-0", "pay", "started", later(-SECOND_NS)),
)


def _sooner(f: Forger, line: Line) -> Line:
    """Start the second run only two seconds after the first."""
    step_runs = [x for x in f.read("worker") if x["step_id"] == line["step_id"] and x["event"] == "started"]
    first, second = sorted(step_runs, key=lambda x: int(x["at"]))
    return line if line["at"] == first["at"] else later(first["at"] + 2 * SECOND_NS - second["at"])(line)


def _as_finished(line: Line) -> Line:
    return line | {"event": "finished"}


def _without(line: Line, member: str) -> Line:
    return {name: value for name, value in line.items() if name != member}
