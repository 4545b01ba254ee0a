"""The lane's writer over the tables in memory: a transaction is a list of how to undo it."""

from collections.abc import Callable, Sequence

from stepwire_broker.core.commit.id_blocks import IDS_PER_BLOCK, block_of
from stepwire_broker.core.definitions.stored_rows import StoredWorkflow
from stepwire_broker.core.model.commit_group import (
    AuditNew,
    CommitGroup,
    ControlChanged,
    Key,
    OrderAnswer,
    Parked,
    WorkflowNew,
)
from stepwire_broker.store.audit_chain import linked
from stepwire_broker.store.controls import CATALOGUE_CHANGED
from stepwire_broker.store.keys import KeyOwner, Name
from stepwire_broker.store.lane import CommitsLost, NotAdvanced, Rows, StoredDigest, Trouble
from stepwire_broker.store.ports import LANE

from .tables import ControlRow, DataRefused, Tables, Undo


class CannotWriteNow(Exception):
    """A passing trouble: the same transaction may succeed later."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class SyncFailed(Exception):
    """The state of the disk is unknown."""


class MemoryWriter:
    """The port `LaneWriter` over Tables. `refuses` may raise DataRefused for rows that are to be unstorable."""

    def __init__(
        self,
        tables: Tables,
        lane: int = LANE,
        refuses: Callable[[Rows], None] | None = None,
        epoch: int | None = None,
    ) -> None:
        """The writer of a lane's owner with this epoch; None: of its present owner."""
        self._tables = tables
        self._lane = lane
        self._epoch = tables.lanes[lane].epoch if epoch is None else epoch
        self._refuses = refuses
        self._undo: Undo = []
        self._marks: list[int] = []
        self._wanted = 0  # the sequence that did not follow the end of the lane

    def begin(self) -> None:
        assert not self._undo

    def commit(self) -> None:
        self._undo.clear()
        self._marks.clear()

    def abandon(self) -> None:
        self._back_to(0)
        self._marks.clear()

    def _back_to(self, mark: int) -> None:
        while len(self._undo) > mark:
            self._undo.pop()()

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Take back a change that was made in this transaction without the writer, if the transaction is undone."""
        self._undo.append(undo)

    def advance(self, seq: int) -> None:
        tables = self._tables
        if not self.fits(seq):
            self._wanted = seq
            raise NotAdvanced
        tables.seqs[self._lane] = seq
        self._undo.append(lambda: tables.seqs.__setitem__(self._lane, seq - 1))

    def fits(self, seq: int) -> bool:
        """Whether this group is the next one of the lane, and the lane has the same owner."""
        return self._is_owner and self._tables.seqs[self._lane] == seq - 1

    def position(self) -> int | None:
        if not self._is_owner:
            return None
        end = self._tables.seqs[self._lane]
        if end < self._wanted - 1:
            raise CommitsLost(f"lane {self._lane} ends at {end}, and group {self._wanted} follows {self._wanted - 1}")
        return end

    @property
    def _is_owner(self) -> bool:
        return self._tables.lanes[self._lane].epoch == self._epoch

    def savepoint(self) -> None:
        self._marks.append(len(self._undo))

    def release(self) -> None:
        self._marks.pop()

    def undo(self) -> None:
        self._back_to(self._marks.pop())

    def claim_keys(self, claims: Sequence[Key]) -> int:
        keys = self._tables.keys
        claimed = 0
        for key in claims:
            name = (key.namespace, key.key)
            if name not in keys:
                keys[name] = KeyOwner(key.digest, key.task_id)
                self._undo.append(lambda n=name: keys.pop(n))  # type: ignore[misc]
                claimed += 1
        return claimed

    def key_owners(self, claims: Sequence[Key]) -> dict[Name, KeyOwner]:
        return {(key.namespace, key.key): self._tables.keys[key.namespace, key.key] for key in claims}

    def release_keys(self, claims: Sequence[Key]) -> None:
        keys = self._tables.keys
        for key in claims:
            name = (key.namespace, key.key)
            if name in keys and keys[name].task_id == key.task_id:
                owner = keys.pop(name)
                self._undo.append(lambda n=name, o=owner: keys.__setitem__(n, o))  # type: ignore[misc]

    def add_workflow(self, new: WorkflowNew) -> bool:
        workflows = self._tables.workflows
        if self._find(new.namespace, new.name, new.version) is not None:
            return False
        self.set_control(CATALOGUE_CHANGED)
        number = len(workflows) + 1
        workflows[number] = StoredWorkflow(
            number, new.namespace, new.name, new.version, new.digest, new.document.decode(), new.created_ms, 0
        )
        self._undo.append(lambda: workflows.pop(number))
        return True

    def _find(self, namespace: str, name: str, version: str) -> StoredWorkflow | None:
        for row in self._tables.workflows.values():
            if (row.namespace, row.name, row.version) == (namespace, name, version):
                return row
        return None

    def find_workflow(self, namespace: str, name: str, version: str) -> StoredDigest:
        row = self._find(namespace, name, version)
        assert row is not None
        return StoredDigest(row.id, row.digest)

    def activate(self, workflow_id: int) -> None:
        self.set_control(CATALOGUE_CHANGED)
        workflows = self._tables.workflows
        wanted = workflows[workflow_id]
        for row in list(workflows.values()):
            if (row.namespace, row.name) == (wanted.namespace, wanted.name):
                workflows[row.id] = row._replace(active=int(row.id == workflow_id))
                self._undo.append(lambda r=row: workflows.__setitem__(r.id, r))  # type: ignore[misc]

    def set_control(self, control: ControlChanged) -> None:
        controls, before = self._tables.controls, dict(self._tables.controls)
        revision = max((row.revision for row in controls.values()), default=0) + 1
        if control.value is None:
            controls["removed", control.kind] = ControlRow(None, 0, revision)
            controls.pop((control.kind, control.name), None)
        else:
            controls[control.kind, control.name] = ControlRow(control.value, control.position, revision)

        def undo() -> None:
            controls.clear()
            controls.update(before)

        self._undo.append(undo)

    def write(self, rows: Rows) -> None:
        if self._refuses is not None:
            self._refuses(rows)
        self._tables.write(rows, self._undo, self._lane)

    def park(self, parked: Sequence[Parked]) -> None:
        stored = self._tables.parked
        for row in parked:
            number = max(stored, default=0) + 1
            stored[number] = row
            self._undo.append(lambda n=number: stored.pop(n))  # type: ignore[misc]

    def add_audit(self, new: Sequence[AuditNew]) -> None:
        audit = self._tables.audit
        rows = linked(self._tables.audit_end(self._lane), new)
        audit.extend(rows)
        self._undo.append(lambda: audit.__delitem__(slice(len(audit) - len(rows), None)))

    def answer_orders(self, answers: Sequence[OrderAnswer]) -> None:
        orders = self._tables.orders
        for each in answers:
            before = orders.get(each.id)
            if before is None or before.lane != self._lane or before.answer is not None:
                raise DataRefused(f"order {each.id} is not open")
            orders[each.id] = before._replace(request="", answer=each.answer)
            self._undo.append(lambda i=each.id, b=before: orders.__setitem__(i, b))  # type: ignore[misc]

    def tasks_of_steps(self, step_ids: Sequence[int]) -> dict[int, int]:
        steps = self._tables.steps
        return {i: steps[i].stored.task_id for i in step_ids if i in steps}

    def reserve_ids(self, count: int) -> tuple[int, int]:
        self._keep_blocks()
        return self._tables.reserve_ids(self._lane, count)

    def return_ids(self, first: int, last: int) -> None:
        number = block_of(first)
        before, block = number * IDS_PER_BLOCK, self._tables.blocks[number]
        if before + block.reserved == last:
            self._keep_blocks()
            self._tables.blocks[number] = block._replace(reserved=first - 1 - before)

    def _keep_blocks(self) -> None:
        blocks, before = self._tables.blocks, dict(self._tables.blocks)

        def undo() -> None:
            blocks.clear()
            blocks.update(before)

        self._undo.append(undo)

    def trouble(self, error: Exception) -> Trouble:
        return trouble_of(error)

    def rest(self, group: CommitGroup) -> None:
        pass

    def close(self) -> None:
        pass


def trouble_of(error: Exception) -> Trouble:
    match error:
        case DataRefused() | UnicodeError():
            return Trouble("data", None, str(error))
        case CannotWriteNow():
            return Trouble("passing", error.code, str(error))
        case SyncFailed():
            return Trouble("broken", None, str(error))
        case _:
            raise error
