"""Lanes are fixed and have an owner. A task's row tells whether it is stored, and not which start has it in memory.

A database that several broker ids have used has a lane of each. Tasks continue in the last of them, and the others keep
their part of the history.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")

TASK_STATES = """
CASE state
 WHEN 'running' THEN finished_ms IS NULL
 WHEN 'completed' THEN finished_ms IS NOT NULL
 WHEN 'pending' THEN finished_ms IS NULL AND stored = 1
 WHEN 'paused' THEN finished_ms IS NULL
 WHEN 'failed' THEN finished_ms IS NOT NULL
 WHEN 'cancelled' THEN finished_ms IS NOT NULL
 ELSE FALSE END""".strip()

TASK_INDEXES = (
    "tasks_left",
    "tasks_wanting",
    "tasks_due",
    "tasks_of_workflow",
    "tasks_failed",
    "tasks_ended",
    "tasks_with_attention",
)


def upgrade() -> None:
    op.execute("PRAGMA legacy_alter_table=ON")  # a renamed table keeps no reference of other tables
    _lanes()
    _tasks()
    op.execute("PRAGMA legacy_alter_table=OFF")


def _lanes() -> None:
    op.rename_table("lanes", "lanes_before")
    op.create_table(
        "lanes",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("owner", sa.Text),
        sa.Column("owner_epoch", NUMBER),
        sa.Column("epoch", NUMBER, nullable=False),
        sa.Column("seq", NUMBER, nullable=False),
        sa.CheckConstraint("seq >= 0 AND epoch >= 0", name="seq_counts"),
        sa.CheckConstraint("(owner IS NULL) = (owner_epoch IS NULL)", name="owner_is_whole"),
        sqlite_strict=True,
    )
    op.execute("INSERT INTO lanes (id, epoch, seq) SELECT id, epoch, seq FROM lanes_before")
    op.drop_table("lanes_before")


def _tasks() -> None:
    for name in TASK_INDEXES:
        op.drop_index(name)
    op.rename_table("tasks", "tasks_before")
    op.create_table(
        "tasks",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("uid", sa.Text, nullable=False),
        sa.Column("workflow_id", NUMBER, sa.ForeignKey("workflows.id"), nullable=False),
        sa.Column("lane", sa.Integer, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("key", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attention", sa.Text),
        sa.Column("cancelling", sa.Integer, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("labels", sa.Text),
        sa.Column("context_bytes", NUMBER, nullable=False),
        sa.Column("created_ms", NUMBER, nullable=False),
        sa.Column("finished_ms", NUMBER),
        sa.Column("deadline_ms", NUMBER),
        sa.Column("rank_ms", NUMBER, nullable=False),
        sa.Column("stored", sa.Integer, nullable=False),
        sa.Column("wake_ms", NUMBER),
        sa.Column("wants", sa.Text),
        sa.Column("context", sa.Text, nullable=False),
        sa.CheckConstraint(TASK_STATES, name="state_fits"),
        sa.CheckConstraint("cancelling IN (0, 1)", name="cancelling_is_yes_or_no"),
        sa.CheckConstraint(
            "stored = 0 OR stored = 1 AND (wake_ms IS NOT NULL OR wants IS NOT NULL)", name="stored_is_found"
        ),
        sa.CheckConstraint("length(uid) = 32", name="uid_is_whole"),
        sqlite_strict=True,
    )
    op.execute(
        """
        INSERT INTO tasks SELECT id, uid, workflow_id, (SELECT max(id) FROM lanes), namespace, key, state, attention,
         cancelling, priority, labels, context_bytes, created_ms, finished_ms, deadline_ms,
         created_ms - priority * 1099511627776, owner_epoch = 0 AND finished_ms IS NULL,
         CASE WHEN owner_epoch = 0 AND finished_ms IS NULL AND wants IS NULL THEN coalesce(wake_ms, 0) ELSE wake_ms END,
         wants, context FROM tasks_before
        """
    )
    op.drop_table("tasks_before")
    _index("tasks_left", ["lane", "rank_ms", "id"], "finished_ms IS NULL AND stored = 0")
    _index(
        "tasks_wanting", ["lane", "wants", "rank_ms", "id"], "finished_ms IS NULL AND stored = 1 AND wants IS NOT NULL"
    )
    _index(
        "tasks_due",
        ["lane", "wake_ms", "rank_ms", "id", "wants"],
        "finished_ms IS NULL AND stored = 1 AND wake_ms IS NOT NULL",
    )
    op.create_index("tasks_of_workflow", "tasks", ["workflow_id", "id"])
    _index("tasks_failed", ["id"], "state = 'failed'")
    _index("tasks_ended", ["state", "finished_ms"], "finished_ms IS NOT NULL")
    _index("tasks_with_attention", ["id"], "attention IS NOT NULL")


def _index(name: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, "tasks", columns, sqlite_where=where, postgresql_where=where)
