"""The reference: Python's driver, in this process. No other module of the kit knows an SDK."""

from collections.abc import Sequence

from stepwire.driver import Driver

from conformance.chaos.course import Course, Op, Reply


class ReferenceFailed(Exception):
    """Python's session itself has a fault at this op: a bug of the reference."""

    def __init__(self, fault: Exception, ops: list[Op]) -> None:
        super().__init__(f"{type(fault).__name__}: {fault}")
        self.ops = ops


def generate(seed: int) -> tuple[list[Op], list[Reply]]:
    """The ops of this seed, and the replies of Python's session. Raises ReferenceFailed."""
    driver, course = Driver(), Course(seed)
    ops: list[Op] = []
    replies: list[Reply] = []
    for op in course.ops():
        ops.append(op)
        try:
            reply = driver.handle(op)
        except Exception as fault:
            raise ReferenceFailed(fault, ops) from fault
        replies.append(reply)
        course.reply(op, reply)
    return ops, replies


def replay(ops: Sequence[Op]) -> list[Reply]:
    """The replies of Python's session to these ops. A fault is a reply, as in a driver's process."""
    driver = Driver()
    replies: list[Reply] = []
    for op in ops:
        try:
            replies.append(driver.handle(op))
        except Exception as fault:
            replies.append({"error": f"{type(fault).__name__}: {fault}"})
    return replies
