"""Who wins an idempotency key. Pure: from what was asked and who has the keys, to what is stored and what is not.

The database decides between brokers (an insert wins or it does not); this decides between the submissions of one group,
in their order, where the earlier one counts as stored for the later one, unless it is not stored after all.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from stepwire_broker.core.model.commit_group import Key, Submission, SubmissionOutcome

Name: TypeAlias = tuple[str, str]  # (namespace, key)


class KeyOwner(NamedTuple):
    digest: bytes
    task_id: int


class Verdict(NamedTuple):
    outcomes: list[SubmissionOutcome]
    left_out: set[int]  # tasks that are not stored: their key has a task already, or their submission is refused
    release: list[Key]  # claimed by a submission that turned out not to be stored
    claim: list[Key]  # free again by that


def all_new(submissions: Sequence[Submission]) -> Verdict:
    """Every key was free, and no two asked for the same."""
    return Verdict([SubmissionOutcome(s.request, {}, None) for s in submissions], set(), [], [])


def settle(submissions: Sequence[Submission], owners: dict[Name, KeyOwner]) -> Verdict:
    """`owners` are the rows after every key was claimed with "insert unless there": a name's first claimant has it,
    or whoever had it before."""
    claimed = {key.task_id: key for submission in submissions for key in submission.keys}
    holds = {name: claimed[owner.task_id] for name, owner in owners.items() if owner.task_id in claimed}
    taken = {name: owner for name, owner in owners.items() if owner.task_id not in claimed}
    wins: dict[Name, Key] = {}
    outcomes: list[SubmissionOutcome] = []
    left_out: set[int] = set()
    for submission in submissions:
        own: dict[Name, KeyOwner] = {}
        existing: dict[int, int] = {}
        conflict = None
        for key in submission.keys:
            name = (key.namespace, key.key)
            owner = taken.get(name) or own.get(name)
            if owner is None:
                own[name] = KeyOwner(key.digest, key.task_id)
            elif owner.digest == key.digest:
                existing[key.task_id] = owner.task_id
            else:
                conflict = key.key
                break
        if conflict is not None:
            outcomes.append(SubmissionOutcome(submission.request, {}, conflict))
            left_out.update(task.id for task in submission.tasks)
            continue
        outcomes.append(SubmissionOutcome(submission.request, existing, None))
        left_out.update(existing)
        taken |= own
        wins |= {name: claimed[owner.task_id] for name, owner in own.items()}
    return Verdict(
        outcomes,
        left_out,
        release=[key for name, key in holds.items() if wins.get(name) != key],
        claim=[key for name, key in wins.items() if holds.get(name) != key],
    )
