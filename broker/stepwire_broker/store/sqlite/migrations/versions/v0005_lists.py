"""Lists are ordered by time and id, and steps that may need an operator have a table of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    for name in ("tasks_of_workflow", "tasks_failed", "tasks_with_attention", "steps_held", "steps_failed"):
        op.drop_index(name)
    op.create_index("tasks_listed", "tasks", ["created_ms", "id"])
    op.create_index("tasks_by_state", "tasks", ["workflow_id", "state", "created_ms", "id"])
    op.create_table(
        "attention",
        sa.Column("id", NUMBER, primary_key=True, nullable=False),
        sa.Column("task_id", NUMBER, nullable=False),
        sa.Column("lane", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("at_ms", NUMBER, nullable=False),
        sa.Column("handler_class", sa.Text),
        sa.CheckConstraint(
            "CASE kind WHEN 'held' THEN id <> task_id WHEN 'failed' THEN id <> task_id "
            "WHEN 'task_held' THEN id = task_id ELSE FALSE END",
            name="kind_fits",
        ),
        sa.CheckConstraint("(id = task_id) = (handler_class IS NULL)", name="handler_is_of_a_step"),
        sqlite_strict=True,
    )
    op.create_index("attention_listed", "attention", ["kind", "at_ms", "id"])
    op.execute(
        """
        INSERT INTO attention SELECT steps.id, task_id, lane, steps.state,
         coalesce(steps.finished_ms, started_ms, dispatched_ms, ready_ms, created_ms), handler_class
         FROM steps JOIN tasks ON tasks.id = task_id WHERE steps.state IN ('held', 'failed')
        """
    )
    op.execute(
        """
        INSERT INTO attention SELECT id, id, lane, 'task_' || attention,
         coalesce((SELECT max(at_ms) FROM attention AS of_steps WHERE of_steps.task_id = tasks.id), created_ms), NULL
         FROM tasks WHERE attention IS NOT NULL
        """
    )
