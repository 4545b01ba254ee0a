"""Decide which submission owns an idempotency key. A pure function of the submissions and the keys' owners.

The database decides between brokers: only one insert succeeds. This module decides between the submissions of one
group, in their order: an earlier submission counts as stored for a later one, unless the earlier one is refused.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from stepwire_broker.core.model.commit_group import Key, KeyConflict, Submission, SubmissionOutcome

Name: TypeAlias = tuple[str, str]  # (namespace, key)


class KeyOwner(NamedTuple):
    digest: bytes
    task_id: int


class Verdict(NamedTuple):
    outcomes: list[SubmissionOutcome]
    left_out: set[int]  # tasks that are not stored: another task has their key, or their submission is refused
    release: list[Key]  # claimed by a submission that is not stored
    claim: list[Key]  # free again because of a release


def all_new(submissions: Sequence[Submission]) -> Verdict:
    """The verdict when every key was free and no two submissions claimed the same one."""
    return Verdict([SubmissionOutcome(s.request, {}, None) for s in submissions], set(), [], [])


def settle(submissions: Sequence[Submission], owners: dict[Name, KeyOwner]) -> Verdict:
    """Decide for each submission. `owners` are the rows after the insert of every key that did not exist. The owner of
    a name is its first claimant, or the task that had the key before."""
    claimed = {key.task_id: key for submission in submissions for key in submission.keys}
    held = {name: claimed[owner.task_id] for name, owner in owners.items() if owner.task_id in claimed}
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
                conflict = KeyConflict(key.key, None if name in own else owner.task_id)
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
        release=[key for name, key in held.items() if wins.get(name) != key],
        claim=[key for name, key in wins.items() if held.get(name) != key],
    )
