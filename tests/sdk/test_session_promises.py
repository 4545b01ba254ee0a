"""Promises for every order of events. Events are drawn relative to what the session holds."""

from hypothesis import given, settings
from hypothesis import strategies as st
from stepwire_protocol.messages import Adopted, Refuse, Result, Results

from .dialogue import Broker, Dialogue, once, step

KINDS = (
    "steps once repeat go cancel adopt finish fail give_back ack reset here restart welcome beat time time freeze "
    "other_broker"
)
MOVES = st.lists(st.tuples(st.sampled_from(KINDS.split()), st.integers(0, 40)), max_size=60)


class World:
    """Records from outside what the session must not get wrong."""

    def __init__(self) -> None:
        self.dialogue = Dialogue(slots=2, prefetch=3)
        self.brokers = [Broker(self.dialogue, "b1"), Broker(self.dialogue, "b2")]
        self.broker = self.brokers[0].welcome()
        self.sent: list[tuple[Broker, str, tuple, str]] = []  # broker, session, steps, batch
        self.started: set[tuple[int, int]] = set()
        self.running: list[tuple[int, int]] = []
        self.granted: set[tuple[int, int]] = set()
        self.disowned: set[tuple[int, int]] = set()
        self.returned: set[tuple[int, int]] = set()
        self.unacked: dict[tuple[int, int], int] = {}
        self.step_id = 0
        self.begun_checked = self.messages_checked = 0

    def play(self, move: str, number: int) -> None:
        d, b = self.dialogue, self.broker
        match move:
            case "steps" | "once":
                kind = step if move == "steps" else once
                steps = tuple(kind(self.step_id + i) for i in range(1, 1 + number % 4 + 1))
                self.step_id += len(steps)
                self.sent.append((b, b.session, steps, b.steps(*steps)))
            case "repeat" if self.sent:
                b, session, steps, batch = self.sent[number % len(self.sent)]
                if b.session == session:
                    b.steps(*steps, batch_id=batch)
            case "go":
                asking = [i for i, s in d.states().items() if s == "asking"]
                items = asking[:1] if number % 4 else [s.step_id for _, _, ss, _ in self.sent for s in ss][:1]
                items = [i if isinstance(i, tuple) else (i, 1) for i in items]
                self.granted |= set(items)
                b.go(*items)
            case "cancel" | "adopt":
                items = [(s.step_id, 1) for _, _, ss, _ in self.sent[-3:] for s in ss] + [(self.step_id + 50, 1)]
                if move == "cancel":
                    b.cancel(*items[:: 1 + number % 3])
                else:
                    b.adopt(*items[:: 1 + number % 3])
            case "finish" | "fail" | "give_back" if self.running:
                item = self.running.pop(number % len(self.running))
                if move == "finish":
                    d.finish(*item)
                elif move == "fail":
                    d.fail(*item)
                else:
                    d.give_back(*item)
            case "ack" if self.unacked:
                rid = sorted(self.unacked.values())[number % len(self.unacked)]
                self.unacked = {i: r for i, r in self.unacked.items() if r != rid}
                b.ack(rid)
            case "reset":
                b.reset(next=b.k + number % 2)
            case "here":
                b.here()
            case "restart":
                b.epoch += 1
            case "welcome":
                b.welcome()
            case "beat":
                b.beat()
            case "time":
                d.pass_time(number * 50)
            case "freeze":
                d.freeze(number * 400)
            case "other_broker":
                self.broker = self.brokers[number % 2]
        self.check()

    def check(self) -> None:
        begun, self.begun_checked = self.dialogue.begun[self.begun_checked :], len(self.dialogue.begun)
        for item in begun:
            run = self.dialogue.handed[item]
            assert item not in self.started, "a known delivery ran twice"
            assert run.step.delivery_mode == "at_least_once" or item in self.granted, "ran without a go"
            assert run.started_ms < run.lease.until_ms or run.lease.until_ms == 0, "ran after its lease"
            assert item not in self.disowned, "ran after it was reported unknown"
            assert item not in self.returned, "ran after its step was returned"
            self.started.add(item)
            self.running.append(item)
        messages, self.messages_checked = self.dialogue.sent[self.messages_checked :], len(self.dialogue.sent)
        for message in messages:
            if isinstance(message, Results):
                for result in message.results:
                    self.unacked[result.step_id, result.delivery] = message.rid
            elif isinstance(message, Adopted):
                self.disowned |= {i[:2] for i in message.items if i[2] == "unknown"}
            elif isinstance(message, Refuse):
                self.returned |= set(message.items)
        held = self.dialogue.states()
        for item in self.running:
            assert held.get(item) == "running", "a run was forgotten"
        for item in self.unacked:
            assert held.get(item) == "done", "a result was forgotten before its ack"
        session = self.dialogue.session
        assert len([s for s in held.values() if s in ("running", "asking")]) <= 2, "more runs than slots"
        handed = sum(h.state in ("running", "asking") for b in session.brokers for h in session.holdings.of_broker(b))
        assert handed == session.slots.taken
        assert session.holdings.load == sum(s != "done" for s in held.values())
        for peer in session.brokers:
            assert peer.load == sum(h.state != "done" for h in session.holdings.of_broker(peer))
        assert session.outbox.bytes == sum(len(m.body) for m in session.outbox)


@settings(max_examples=400, deadline=None)
@given(MOVES)
def test_no_delivery_runs_twice_or_without_go_or_after_its_lease_and_no_result_is_forgotten(moves):
    world = World()
    world.check()
    for move, number in moves:
        world.play(move, number)


@settings(max_examples=100, deadline=None)
@given(MOVES)
def test_the_session_never_asks_to_be_woken_for_nothing_without_end(moves):
    world = World()
    for move, number in moves:
        world.play(move, number)
    world.dialogue.act()
    assert world.dialogue.session.wake_at() > world.dialogue.now


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["finish", "fail"]), st.integers(0, 5)), max_size=12), st.integers(1, 4))
def test_every_result_is_resent_until_it_is_acked(ends, slots):
    dialogue = Dialogue(slots=slots)
    broker = Broker(dialogue).welcome()
    broker.steps(*[step(i) for i in range(1, 13)])
    for kind, number in ends:
        running = [i for i, s in dialogue.states().items() if s == "running"]
        item = running[number % len(running)]
        error = Result(step_id=item[0], delivery=1, status="failed" if kind == "fail" else "completed")
        dialogue.finish_with(error)
    dialogue.sent.clear()
    dialogue.pass_time(600)
    again = {m.rid for m in dialogue.take(Results)}
    assert again == set(range(1, len(ends) + 1))
    broker.ack(*again)
    dialogue.pass_time(1_500)
    assert not dialogue.take(Results)
