"""The declared schema, for every database. Its CHECKs reject invalid rows: a step's state decides which columns have
values.

The migrations result in exactly this schema, and a test compares the two. Columns are in the order of the row types of
core/model/commit_group.py and core/definitions/stored_rows.py. The large payload is last, because SQLite reads a column
by walking through all columns before it. Times are UTC milliseconds, payloads are JSON text, and a column accepts only
its own type. `keys`, `history` and `step_stderr` have no foreign keys: a key is claimed before its task is stored, and
every other row would cost a look-up.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata: Final = MetaData()


# On SQLite only the exact type name INTEGER makes a primary key the row id.
Number: Final = BigInteger().with_variant(Integer, "sqlite")

# One line per state: columns that must have values, and columns that must not. The first match decides, so frequent
# states come first.
STEP_STATES: Final = """
CASE state
 WHEN 'dispatched' THEN batch_id IS NOT NULL AND worker IS NOT NULL AND delivery > 0 AND dispatched_ms IS NOT NULL
  AND finished_ms IS NULL
 WHEN 'completed' THEN batch_id IS NULL AND finished_ms IS NOT NULL AND output IS NOT NULL
 WHEN 'waiting' THEN batch_id IS NULL AND finished_ms IS NULL
 WHEN 'ready' THEN batch_id IS NULL AND finished_ms IS NULL AND ready_ms IS NOT NULL
 WHEN 'retry_wait' THEN batch_id IS NULL AND finished_ms IS NULL AND not_before_ms IS NOT NULL
 WHEN 'held' THEN finished_ms IS NULL
 WHEN 'failed' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 WHEN 'cancelled' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 WHEN 'skipped' THEN batch_id IS NULL AND finished_ms IS NOT NULL
 ELSE FALSE END""".strip()

TASK_STATES: Final = """
CASE state
 WHEN 'running' THEN finished_ms IS NULL
 WHEN 'completed' THEN finished_ms IS NOT NULL
 WHEN 'pending' THEN finished_ms IS NULL AND stored = 1
 WHEN 'paused' THEN finished_ms IS NULL
 WHEN 'failed' THEN finished_ms IS NOT NULL
 WHEN 'cancelled' THEN finished_ms IS NOT NULL
 ELSE FALSE END""".strip()


def _where(condition: str) -> dict[str, Any]:
    """Return the condition of a partial index, for every database."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


meta = Table(
    "meta",
    metadata,
    Column("name", Text, primary_key=True, nullable=False),
    Column("value", Text, nullable=False),
    sqlite_strict=True,
)

# What operators and workers set at run time, one row each. `revision` rises with each change, so a broker that shares
# the database reads only newer rows. A removal deletes its row and sets the row (removed, <kind>): a reader that meets
# the latter reads all rows of that kind again.
controls = Table(
    "controls",
    metadata,
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("value", Text),
    Column("position", Number),
    Column("revision", Number, nullable=False),
    PrimaryKeyConstraint("kind", "name"),
    CheckConstraint("revision > 0", name="revision_counts"),
    CheckConstraint("value IS NOT NULL OR kind = 'removed'", name="value_is_given"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("controls_newest", controls.c.revision)

brokers = Table(
    "brokers",
    metadata,
    Column("id", Text, primary_key=True, nullable=False),
    Column("epoch", Number, nullable=False),  # of the last start; unique among all starts of all brokers
    Column("lease_until_ms", Number, nullable=False),  # 0 on SQLite, where the lock of the file is the lease
    Column("lease_ms", Number, nullable=False),  # the longest lease that its workers may still hold
    CheckConstraint("epoch > 0", name="epoch_is_given"),
    sqlite_strict=True,
)

# A lane is a fixed part of the database. A task stays in its lane for life, with its steps and its history, and only
# the lane's owner writes them.
lanes = Table(
    "lanes",
    metadata,
    Column("id", Number, primary_key=True, nullable=False),
    Column("owner", Text),  # the broker that writes this lane; None: no broker does
    Column("owner_epoch", Number),  # of the owner's start
    Column("epoch", Number, nullable=False),  # one higher at every change of the owner: the fence
    Column("seq", Number, nullable=False),  # of the last transaction; continues over owners and so orders the history
    CheckConstraint("seq >= 0 AND epoch >= 0", name="seq_counts"),
    CheckConstraint("(owner IS NULL) = (owner_epoch IS NULL)", name="owner_is_whole"),
    sqlite_strict=True,
)

# Blocks of 2^20 ids of tasks and steps. Block n has the ids from n * 2^20 + 1 to (n + 1) * 2^20.
blocks = Table(
    "blocks",
    metadata,
    Column("number", Number, primary_key=True, nullable=False),
    Column("lane", Integer, nullable=False),
    Column("reserved", Integer, nullable=False),  # from the first on; no other id of the block is used
    CheckConstraint("number BETWEEN 0 AND 8589934591", name="ids_fit_every_language"),
    CheckConstraint("reserved BETWEEN 0 AND 1048576", name="reserved_fits"),
    sqlite_strict=True,
)
Index("blocks_of_lane", blocks.c.lane, blocks.c.number)

workflows = Table(
    "workflows",
    metadata,
    Column("id", Number, primary_key=True, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("created_ms", Number, nullable=False),
    Column("active", Integer, nullable=False),
    UniqueConstraint("namespace", "name", "version", name="workflows_version"),
    CheckConstraint("active IN (0, 1)", name="active_is_yes_or_no"),
    sqlite_strict=True,
)
Index("workflows_active", workflows.c.namespace, workflows.c.name, unique=True, **_where("active = 1"))

tasks = Table(
    "tasks",
    metadata,
    Column("id", Number, primary_key=True, nullable=False),
    Column("uid", Text, nullable=False),
    Column("workflow_id", Number, ForeignKey("workflows.id"), nullable=False),
    Column("lane", Integer, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("key", Text),
    Column("state", Text, nullable=False),
    Column("attention", Text),
    Column("cancelling", Integer, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("labels", Text),
    Column("context_bytes", Number, nullable=False),
    Column("created_ms", Number, nullable=False),
    Column("finished_ms", Number),
    Column("deadline_ms", Number),
    Column("rank_ms", Number, nullable=False),  # created_ms - priority * 2^40: the loader reads the lowest first
    Column("stored", Integer, nullable=False),  # 1: in no broker's memory; wake_ms and wants decide when it is loaded
    Column("wake_ms", Number),
    Column("wants", Text),
    Column("context", Text, nullable=False),
    CheckConstraint(TASK_STATES, name="state_fits"),
    CheckConstraint("cancelling IN (0, 1)", name="cancelling_is_yes_or_no"),
    CheckConstraint("stored = 0 OR stored = 1 AND (wake_ms IS NOT NULL OR wants IS NOT NULL)", name="stored_is_found"),
    CheckConstraint("length(uid) = 32", name="uid_is_whole"),
    sqlite_strict=True,
)
# For the loader: the tasks that the former owner of a lane had in memory, the tasks that wait for a given handler, and
# the tasks that are due. Each open task is in at least one of these indexes.
Index("tasks_left", tasks.c.lane, tasks.c.rank_ms, tasks.c.id, **_where("finished_ms IS NULL AND stored = 0"))
Index(
    "tasks_wanting",
    tasks.c.lane,
    tasks.c.wants,
    tasks.c.rank_ms,
    tasks.c.id,
    **_where("finished_ms IS NULL AND stored = 1 AND wants IS NOT NULL"),
)
Index(
    "tasks_due",
    tasks.c.lane,
    tasks.c.wake_ms,
    tasks.c.rank_ms,
    tasks.c.id,
    tasks.c.wants,
    **_where("finished_ms IS NULL AND stored = 1 AND wake_ms IS NOT NULL"),
)
# The newest first, of all tasks and of one state of a workflow. Ids of different lanes are not in the order of time.
Index("tasks_listed", tasks.c.created_ms, tasks.c.id)
Index("tasks_by_state", tasks.c.workflow_id, tasks.c.state, tasks.c.created_ms, tasks.c.id)
# For retention: the tasks that ended in this state, the earliest first.
Index("tasks_ended", tasks.c.state, tasks.c.finished_ms, **_where("finished_ms IS NOT NULL"))

steps = Table(
    "steps",
    metadata,
    Column("id", Number, primary_key=True, nullable=False),
    Column("task_id", Number, ForeignKey("tasks.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("handler_class", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("delivery", Integer, nullable=False, server_default=text("0")),
    Column("accept_from", Integer, nullable=False, server_default=text("0")),
    Column("batch_id", Text),
    Column("worker", Text),
    Column("granted", Integer, nullable=False, server_default=text("0")),
    Column("lost_sessions", Integer, nullable=False, server_default=text("0")),
    Column("ready_ms", Number),
    Column("dispatched_ms", Number),
    Column("started_ms", Number),
    Column("not_before_ms", Number),
    Column("finished_ms", Number),
    Column("deadline_ms", Number),
    Column("run_ms", Number),  # of the latest run, as its worker measured it
    Column("error", Text),
    Column("reason", Text),
    Column("key_number", Integer, nullable=False, server_default=text("0")),
    Column("earlier", Text),
    Column("handle", Text),  # of a run that outlives the broker
    Column("output_bytes", Number, nullable=False, server_default=text("0")),
    Column("output", Text),
    CheckConstraint(STEP_STATES, name="state_fits"),
    CheckConstraint("granted = 0 OR granted = 1", name="granted_is_yes_or_no"),
    sqlite_strict=True,
)
Index("steps_of_task", steps.c.task_id, steps.c.position, unique=True)

# Steps and tasks that may need an operator. Few rows, written with the fact: an index of all steps by state would be
# changed by every step.
attention = Table(
    "attention",
    metadata,
    Column("id", Number, primary_key=True, nullable=False),  # of the step, or of the task for its own attention
    Column("task_id", Number, nullable=False),
    Column("lane", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("at_ms", Number, nullable=False),
    Column("handler_class", Text),
    CheckConstraint(
        "CASE kind WHEN 'held' THEN id <> task_id WHEN 'failed' THEN id <> task_id "
        "WHEN 'task_held' THEN id = task_id ELSE FALSE END",
        name="kind_fits",
    ),
    CheckConstraint("(id = task_id) = (handler_class IS NULL)", name="handler_is_of_a_step"),
    sqlite_strict=True,
)
Index("attention_listed", attention.c.kind, attention.c.at_ms, attention.c.id)

# The end of the standard error of a step's latest run that reported any. A table of its own: a text in `steps` would be
# walked through on the way to `output`.
step_stderr = Table(
    "step_stderr",
    metadata,
    Column("id", Number, primary_key=True, nullable=False),  # the step's
    Column("delivery", Integer, nullable=False),
    Column("text", Text, nullable=False),
    sqlite_strict=True,
)

keys = Table(
    "keys",
    metadata,
    Column("namespace", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("digest", LargeBinary, nullable=False),
    Column("task_id", Number, nullable=False),
    PrimaryKeyConstraint("namespace", "key"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# (lane, seq, position) orders a lane's history, and a later commit is always after the earlier commits of its lane. A
# follower of the history keeps a cursor for each lane and skips nothing.
history = Table(
    "history",
    metadata,
    Column("lane_id", Number, nullable=False),
    Column("seq", Number, nullable=False),
    Column("position", Integer, nullable=False),
    Column("task_id", Number, nullable=False),
    Column("at_ms", Number, nullable=False),
    Column("facts", Text, nullable=False),
    PrimaryKeyConstraint("lane_id", "seq", "position"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("history_of_task", history.c.task_id)

parked = Table(
    "parked",
    metadata,
    Column("id", Number, primary_key=True, nullable=False),
    Column("at_ms", Number, nullable=False),
    Column("task_id", Number),
    Column("step_id", Number),
    Column("code", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    sqlite_strict=True,
)

# Actions of operators, and changes of the rights of tokens and keys. Each lane has one chain of rows, numbered without
# a gap: see audit_chain.py.
audit = Table(
    "audit",
    metadata,
    Column("lane", Number, nullable=False),  # lanes.id
    Column("n", Number, nullable=False),
    Column("at_ms", Number, nullable=False),
    Column("principal", Text, nullable=False),
    Column("via", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),  # a JSON object of ids, counts and digests; never a payload
    Column("outcome", Text, nullable=False),
    Column("request_id", Text),
    Column("hash", Text, nullable=False),
    PrimaryKeyConstraint("lane", "n"),
    CheckConstraint("n > 0", name="n_counts"),
    CheckConstraint("length(hash) = 64", name="hash_is_whole"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

# The end of each chain, and the last row that retention removed from its beginning.
audit_chains = Table(
    "audit_chains",
    metadata,
    Column("lane", Number, primary_key=True, nullable=False),
    Column("n", Number, nullable=False),  # of the last row
    Column("hash", Text, nullable=False),
    Column("cut_n", Number, nullable=False),  # of the last removed row; 0 if none was removed
    Column("cut_hash", Text, nullable=False),
    CheckConstraint("n >= cut_n AND cut_n >= 0", name="cut_is_before_the_end"),
    CheckConstraint("length(hash) = 64 AND length(cut_hash) = 64", name="hashes_are_whole"),
    sqlite_strict=True,
)
