"""Reads of tasks that are under way, each with its purpose.

`gone` are the tasks that left memory during the read, and `gone_lanes` the lanes that this broker lost meanwhile: the
rows that were read may be out of date.
"""

from typing import TypeAlias

from msgspec import Struct
from stepwire_protocol.messages import Results, ResultsLevel0

from stepwire_broker.core.model.events import Command


class PageLoad(Struct):
    """Open tasks of these lanes that are in no broker's memory, at most `limit` of them."""

    limit: int
    lanes: set[int]
    gone: set[int] = set()
    gone_lanes: set[int] = set()


class ResultsLoad(Struct):
    """Steps that a message names and that are not in memory. The message is handled again."""

    message: Results | ResultsLevel0
    principal: str  # who sent it
    gone: set[int] = set()
    gone_lanes: set[int] = set()


class CommandLoad(Struct):
    """The task that a command names, or whose step it names. The command is handled again."""

    command: Command
    gone: set[int] = set()
    gone_lanes: set[int] = set()


class RejectedLoad(Struct):
    """The stored state of a task whose rows the database refused."""

    task_id: int
    gone: set[int] = set()
    gone_lanes: set[int] = set()


AnyLoad: TypeAlias = PageLoad | ResultsLoad | CommandLoad | RejectedLoad
