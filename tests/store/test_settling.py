"""How a group settles its idempotency keys, without a database."""

from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.model.commit_group import Key, KeyConflict, Submission
from stepwire_broker.store.keys import KeyOwner, settle

from .stored_rows import task_new


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([b"1", b"2"])), min_size=1, max_size=3), max_size=6
    ),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([b"1", b"2"])),
)
def test_settling_a_group_at_once_equals_settling_its_submissions_one_by_one(
    batches: list[list[tuple[str, bytes]]], stored_digests: dict[str, bytes]
) -> None:
    """`settle` sees the keys after all were claimed at once; claiming one by one is too simple to be wrong."""
    submissions = []
    for request, batch in enumerate(batches):
        ids = [1000 * (request + 1) + i for i in range(len(batch))]
        keys = [Key("n", name, digest, i) for (name, digest), i in zip(batch, ids, strict=True)]
        submissions.append(Submission(request, keys, [task_new(i) for i in ids], [], []))
    before = {("n", name): KeyOwner(digest, ord(name)) for name, digest in stored_digests.items()}

    at_once = dict(before)
    for submission_ in submissions:
        for key in submission_.keys:
            at_once.setdefault((key.namespace, key.key), KeyOwner(key.digest, key.task_id))
    verdict = settle(submissions, at_once)
    for key in verdict.release:
        assert at_once.pop((key.namespace, key.key)).task_id == key.task_id
    for key in verdict.claim:
        assert at_once.setdefault((key.namespace, key.key), KeyOwner(key.digest, key.task_id)).task_id == key.task_id

    stored = dict(before)
    expected = []
    for submission_ in submissions:
        trial, existing, conflict = dict(stored), {}, None
        for key in submission_.keys:
            owner = trial.setdefault((key.namespace, key.key), KeyOwner(key.digest, key.task_id))
            if owner.digest != key.digest:
                is_stored = (key.namespace, key.key) in stored
                conflict = KeyConflict(key.key, owner.task_id if is_stored else None)
                break
            if owner.task_id != key.task_id:
                existing[key.task_id] = owner.task_id
        if conflict is None:
            stored = trial
        expected.append((submission_.request, {} if conflict else existing, conflict, None))
    assert verdict.outcomes == expected
    assert at_once == stored
