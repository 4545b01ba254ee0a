"""Surprising facts: what a broker, a network or a handler may do at any time, aimed at the state of the session."""

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .broker import Item, Message, PlayedBroker, frame

if TYPE_CHECKING:
    from .course import Course

Op = dict[str, Any]


def _received(text: str) -> Op:
    return {"op": "receive", "frame": text}


def _broker(course: "Course") -> PlayedBroker:
    return course.rng.choice(course.brokers)


def _held(course: "Course", *states: str) -> list[Item]:
    return [(s, d) for s, d, state, _ in course.holding if not states or state in states]


def _some(course: "Course", items: list[Item]) -> list[Item]:
    """Some of these items, in another order."""
    return course.rng.sample(items, course.rng.randint(1, min(len(items), 4))) if items else []


def _any_items(course: "Course", *likely: str) -> list[Item]:
    """Items in these states; sometimes others, unknown ones, or items that are over."""
    rng = course.rng
    kind = rng.random()
    if kind < 0.6 and (items := _some(course, _held(course, *likely))):
        return items
    if kind < 0.75 and (items := _some(course, _held(course))):
        return items
    if kind < 0.9 and (items := _some(course, [item for broker in course.brokers for item in broker.items])):
        return items
    if kind < 0.95 and course.ended:
        return _some(course, course.ended[-20:])
    return [(rng.randint(1, 300_000), rng.randint(1, 2))]


# -- steps ------------------------------------------------------------------------------------------------------------


def steps(course: "Course") -> Op | None:
    rng, traits = course.rng, course.traits
    broker = _broker(course)
    count = rng.randint(1, traits.batch_max)
    if traits.respects_credit:
        count = min(count, broker.free)
        if not count or broker.session is None:
            return None
    if rng.random() < 0.01:
        count = 0
    broker.free = max(0, broker.free - count)
    text = broker.steps(broker.new_steps(count))
    if rng.random() < 0.3:
        course.later(text)
        return None
    return _received(text)


def resend_steps(course: "Course") -> Op | None:
    batches = _broker(course).batches
    return _received(frame(f"@{course.worker} ", course.rng.choice(list(batches)[-8:]))) if batches else None


def steps_again(course: "Course") -> Op | None:
    """Items that were sent before, in another batch: the same delivery, the next one, or one of another broker."""
    rng = course.rng
    broker, owner = _broker(course), _broker(course)
    known = [*owner.items][-30:]
    if not known:
        return None
    again: list[Message] = []
    for step_id, delivery in _some(course, known):
        match rng.randrange(3):
            case 0:
                again.append(owner.items[step_id, delivery])
            case 1:
                again.append(broker.step((step_id, delivery + 1)))
            case _:
                again.append(broker.step((step_id, delivery)))
    if rng.random() < 0.1:
        again += again[:1]
    if rng.random() < 0.3:
        again += broker.new_steps(1)
    changed = {}
    if rng.random() < 0.2 and broker.batches:
        changed = {"batch_id": rng.choice(("other", broker.batches[0]["batch_id"], broker.batches[-1]["batch_id"]))}
    return _received(broker.steps(again, **changed))


def stray_steps(course: "Course") -> Op | None:
    """Steps of another session, epoch or protocol version."""
    rng = course.rng
    broker = _broker(course)
    new = broker.new_steps(rng.randint(1, 2))
    match rng.randrange(5):
        case 0:
            changed: Message = {"session": f"{broker.epoch}.{max(1, broker.worker_next + rng.choice((-1, 1)))}"}
        case 1:
            changed = {"epoch": max(0, broker.epoch + rng.choice((-1, 1)))}
        case 2:
            changed = {"protocol_version": rng.choice(("1.0", "3.0"))}
        case 3:
            changed = {"protocol_version": "2.7", "v": "2.7", "later": {"member": [1]}}
        case _:
            changed = {"broker": "b9", "session": "1.1"}
    return _received(broker.steps(new, **changed))


def unreadable(course: "Course") -> Op | None:
    """Messages that no worker can read, or that are larger than the worker permits."""
    rng = course.rng
    broker = _broker(course)
    step = broker.new_steps(1)[0]
    match rng.randrange(12):
        case 0:
            step["metadata"] = {}
        case 1:
            step["handler_class"] = 7
        case 2:
            text = broker.steps([step])
            return _received(text.replace(f'"task_id":{step["task_id"]}', f'"task_id":{step["task_id"]}.0'))
        case 3:
            text = broker.steps([step])
            return _received(text.replace(f'"step_id":{step["step_id"]}', f'"step_id":{step["step_id"]}.0'))
        case 4:
            return _received(broker.steps([step])[: rng.randint(10, 200)])
        case 5:
            data = broker.steps([step]).encode().replace(b'"batch_id":"', b'"batch_id":"\xff', 1)
            return {"op": "receive", "frame_base64": base64.b64encode(data).decode()}
        case 6:
            step["task_context"] = {"text": "x" * (course.bytes_max % 4_000_000 + 10)}
        case 7:
            return _received(broker.steps([step], v=rng.choice((2.0, "3.0", "1.0", "2", "2.x", None))))
        case 8:
            return _received(broker.steps([step], session=rng.choice((7, "7", "7.x"))))
        case 9:
            step["delivery_mode"] = "sometimes"
        case 10:
            step["metadata"]["timeout_ms"] = rng.choice((-1, "30000", None))
        case _:
            kind = rng.choice(("welcome", "here", "reset", "go", "ack", "heartbeat_ack", "adopt", "cancel"))
            return _received(frame(f"@{course.worker} ", broker.in_session(kind)))
    return _received(broker.steps([step, *broker.new_steps(rng.choice((0, 0, 1)))]))


# -- brokers ----------------------------------------------------------------------------------------------------------


def here(course: "Course") -> Op | None:
    return _received(_broker(course).here(course.rng.choice(("brokers ", None))))


def restart(course: "Course") -> Op | None:
    broker = _broker(course)
    broker.restart(course.rng.choice((1, 1, 5)), keeps_items=course.rng.random() < 0.8)
    return _received(broker.here("brokers "))


def old_here(course: "Course") -> Op | None:
    broker = _broker(course)
    return _received(broker.here("brokers ", epoch=max(0, broker.epoch - course.rng.choice((1, 2)))))


def other_deployment(course: "Course") -> Op | None:
    broker = _broker(course)
    if course.rng.random() < 0.5:
        broker.restart(course.rng.choice((-1, 1, 0)), keeps_items=False)
        broker.epoch = max(0, broker.epoch)
        broker.deployment = f"{course.rng.getrandbits(64):016x}"
        return _received(broker.here("brokers "))
    changed = {"deployment": "ffffffffffffffff"}
    if course.rng.random() < 0.5:
        return _received(broker.here(None, **changed))
    return _received(broker.welcome(broker.hello_ns[-1], **changed))


def welcome(course: "Course") -> Op | None:
    broker = _broker(course)
    return _received(broker.welcome(broker.hello_ns[-1]))


def wrong_welcome(course: "Course") -> Op | None:
    """A welcome that answers another hello, names another session, or has other numbers."""
    rng = course.rng
    broker = _broker(course)
    n = broker.hello_ns[-1]
    changed: Message = {}
    match rng.randrange(8):
        case 0:
            n = rng.choice(list(broker.hello_ns))
        case 1:
            n = rng.choice((0, broker.heartbeat_ns[-1], n + 1_000))
        case 2:
            changed = {"session": f"{broker.epoch}.{max(1, broker.worker_next + rng.choice((-1, 1)))}"}
        case 3:
            changed = {"epoch": max(0, broker.epoch - 1)}
        case 4:
            epoch = max(0, broker.epoch + rng.choice((-1, 1)))
            changed = {"epoch": epoch, "session": f"{epoch}.{broker.worker_next}"}
        case 5:
            changed = {"lease_ms": rng.choice((1, 100, 700, 60_000)), "heartbeat_ms": rng.choice((0, 1, 10, 100_000))}
        case 6:
            changed = {"max_message_bytes": rng.choice((1, 250, 1_000, 10_000_000))}
        case _:
            changed = {"v": "2.3", "later": 1}
    return _received(broker.welcome(n, **changed))


def ack_heartbeat(course: "Course") -> Op | None:
    rng = course.rng
    broker = _broker(course)
    ns = [*broker.heartbeat_ns, *broker.hello_ns]
    n = rng.choice((*ns, broker.heartbeat_ns[-1] + 50, 0))
    changed: Message = {}
    if rng.random() < 0.2:
        changed = {"session": f"{broker.epoch}.{max(1, broker.worker_next - 1)}"}
    return _received(broker.heartbeat_ack(n, **changed))


def order(course: "Course") -> Op | None:
    """The broker orders the worker to be quiet, or no longer; rarely to quit."""
    rng = course.rng
    broker = _broker(course)
    broker.is_quiet = rng.random() < 0.4
    changed = {"quit": True} if rng.random() < 0.03 else {}
    return _received(broker.heartbeat_ack(broker.heartbeat_ns[-1], quiet=broker.is_quiet, **changed))


def lists(course: "Course") -> Op | None:
    """The broker names other brokers of its deployment, in a welcome or in an ack."""
    rng = course.rng
    broker = _broker(course)
    if not course.traits.lists_brokers and rng.random() < 0.7:
        return None
    if rng.random() < 0.15:
        broker.lists = rng.choice(([], None))
    else:
        broker.lists = [
            {"broker": f"b{i}", "steps": steps, "results": f"tcp://10.0.0.{i}:7412"}
            | (
                {"server_key": rng.choice((None, "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"))}
                if rng.random() < 0.3
                else {}
            )
            for i in rng.sample((1, 2, 3, 8, 9), rng.randint(1, 3))
            for steps in (rng.choices((f"tcp://10.0.0.{i}:7411", "", f"tcp://10.9.9.{i}:7411"), (8, 1, 1))[0],)
        ]
    if rng.random() < 0.5:
        return _received(broker.welcome(broker.hello_ns[-1]))
    return _received(broker.heartbeat_ack(broker.heartbeat_ns[-1], brokers=broker.lists))


def silence(course: "Course") -> Op | None:
    """Everything that is under way is lost."""
    course._due = [entry for entry in course._due if course.rng.random() < 0.3]
    course._due.sort()
    return None


def jump(course: "Course") -> Op | None:
    """The process was suspended."""
    rng = course.rng
    lease_ms = course.traits.lease_ms
    past = (lease_ms * 0.97 - 1, lease_ms * 0.97, float(lease_ms), lease_ms * 3.0, 16_000.0, 20_000.0, 700_000.0)
    course.now_ms += rng.choices(past, (2, 2, 2, 2, 2, 2, 1))[0]
    return {"op": "tick"}


# -- items ------------------------------------------------------------------------------------------------------------


def go(course: "Course") -> Op | None:
    broker = _broker(course)
    items = [*broker.asked][-4:] if broker.asked and course.rng.random() < 0.5 else _any_items(course, "asking")
    changed = {}
    if course.rng.random() < 0.1:
        changed = {"session": f"{broker.epoch}.{max(1, broker.worker_next - 1)}"}
    return _received(broker.go(items, **changed))


def cancel(course: "Course") -> Op | None:
    reason = course.rng.choice(("not_granted", "timeout", "task_cancelled", "superseded"))
    return _received(_broker(course).cancel(_any_items(course, "queued", "asking", "running"), reason))


def adopt(course: "Course") -> Op | None:
    return _received(_broker(course).adopt(_any_items(course)))


def ack(course: "Course") -> Op | None:
    rng = course.rng
    broker = _broker(course)
    rids = [rng.choice((*broker.rids, broker.rids[-1], broker.rids[-1] + 1))]
    if rng.random() < 0.3:
        rids += [broker.rids[-1], rids[0]]
    return _received(broker.ack(rids))


def refused(course: "Course") -> Op | None:
    rng = course.rng
    broker = _broker(course)
    code = rng.choice(("bad_field", "bad_json", "too_large", "wrong_batch", "unknown_delivery", "unknown_session"))
    rid = rng.choice((broker.rids[-1], broker.rids[-1], broker.rids[0], None, 4_000))
    return _received(broker.refused(code, rid, rng.choice(("results", "accept", None))))


def reset(course: "Course") -> Op | None:
    rng = course.rng
    broker = _broker(course)
    code = rng.choice(("unknown_session", "expired", "version", "unauthorized", "shutdown"))
    next = max(0, broker.worker_next + rng.choice((0, 0, 0, 0, -1, 1)))
    changed: Message = {"epoch": max(0, broker.epoch - 1)} if rng.random() < 0.1 else {}
    if not changed and next == broker.worker_next and rng.random() < 0.8:
        broker.session = None
    if code == "version":
        changed["versions"] = ["3.0"]
    return _received(broker.reset(next, code, **changed))


def unknown(course: "Course") -> Op | None:
    """A type, a topic or a member of a later version."""
    rng = course.rng
    broker = _broker(course)
    match rng.randrange(4):
        case 0:
            return _received(frame(f"@{course.worker} ", broker.in_session("festival", steps=[{"step_id": 1}])))
        case 1:
            topic = rng.choice(("steps ", "brokers ", "@other-1:0123456789abcdef ", f"@{course.worker}", "@"))
            return _received(frame(topic, broker.in_session("go", items=_any_items(course, "asking"))))
        case 2:
            return _received(rng.choice(("", "steps", "brokers", f"@{course.worker} ", f"@{course.worker} []")))
        case _:
            return _received(broker.heartbeat_ack(broker.heartbeat_ns[-1], v="2.9", later=[1, {"a": None}]))


# -- the network and the handlers -------------------------------------------------------------------------------------


def replay(course: "Course") -> Op | None:
    return _received(course.rng.choice(course.frames)) if course.frames else None


def delay(course: "Course") -> Op | None:
    """An earlier frame arrives much later."""
    if course.frames:
        text = course.rng.choice(course.frames[-10:])
        course.at(course.now_ms + course.rng.uniform(0, 12_000), lambda: _received(text))
    return None


def end_run(course: "Course") -> Op | None:
    return course.end(course.rng.choice(list(course.running))) if course.running else None


def end_nothing(course: "Course") -> Op | None:
    """The end of a run that does not run: it is over, waits, or is unknown."""
    items = [item for item in _any_items(course, "queued", "asking") if item not in course.running]
    if not items:
        return None
    item = {"step_id": items[0][0], "delivery": items[0][1]}
    if course.rng.random() < 0.5:
        return {"op": "complete", **item, "output": {"of": "nothing"}}
    return {"op": "fail", **item, "message": "of nothing"}


def progress(course: "Course") -> Op | None:
    rng = course.rng
    items = list(course.running) if course.running and rng.random() < 0.9 else _any_items(course, "queued")
    item = rng.choice(items)
    op: Op = {"op": "progress", "step_id": item[0], "delivery": item[1], "done": rng.choice((0, 1, 2.5, 100))}
    if rng.random() < 0.7:
        op["total"] = rng.choice((None, 100, 7.5))
    if rng.random() < 0.5:
        op["note"] = rng.choice((None, "half", "größer"))
    return op


def quiet(course: "Course") -> Op | None:
    return {"op": "quiet"}


def full(course: "Course") -> Op | None:
    return {"op": "full", "is_full": course.rng.random() < 0.4}


def drain(course: "Course") -> Op | None:
    return {"op": "drain"}


def expel(course: "Course") -> Op | None:
    return {"op": "expel"} if course.is_drained else None


Maker = Callable[["Course"], Op | None]

MAKERS: Final[dict[str, Maker]] = {
    maker.__name__: maker
    for maker in (
        steps, resend_steps, steps_again, stray_steps, unreadable,
        here, restart, old_here, other_deployment, welcome, wrong_welcome, ack_heartbeat, order, lists, silence, jump,
        go, cancel, adopt, ack, refused, reset, unknown,
        replay, delay, end_run, end_nothing, progress, quiet, full, drain, expel,
    )
}  # fmt: skip
