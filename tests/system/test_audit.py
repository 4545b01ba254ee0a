"""The audit of real brokers: over kills, and as the commands show it.

`python -m tests.system.audit_kills --times 100` is the long form of the first test.
"""

import json
from collections.abc import Callable

from .audit_kills import run
from .harness import Site, workflow


def test_a_broker_killed_between_effect_and_answer_has_one_row_for_each_effect(
    site: Site, figure: Callable[[str], None]
) -> None:
    figures = run(site, times=5, seed=7)
    figure(f"{figures.kills} kills, {figures.effects} effects, {figures.rows} rows, {figures.answered} answered")
    assert figures.faults == []
    assert figures.effects == figures.rows > 0


def test_a_backup_and_its_restore_leave_a_row_each_and_the_chain_goes_on(site: Site) -> None:
    site.start_broker()
    site.apply(workflow("order", {"name": "charge"}))
    task_id = site.ask("POST", "/v1/tasks", {"workflow": "order"}).body["task_id"]
    assert site.ask("POST", f"/v1/tasks/{task_id}/cancel", {"reason": "the customer withdrew"}).status == 200
    backup = site.directory / "backup.db"
    assert site.stepwire("db", "backup", str(backup)).returncode == 0
    head = site.directory / "head.json"
    head.write_text(site.stepwire("audit", "head").stdout)
    listed = site.stepwire("-o", "json", "audit", "list")
    actions = [row["action"] for row in json.loads(listed.stdout)]
    assert actions == ["backup_database", "cancel_task", "apply_workflow"]
    assert site.stepwire("audit", "verify", "--head", str(head)).returncode == 0
    assert site.broker is not None
    site.broker.kill9()
    restored = site.stepwire("--yes", "db", "restore", str(backup))
    assert restored.returncode == 0, restored.stderr
    exported = [json.loads(line) for line in site.stepwire("audit", "export").stdout.splitlines()]
    assert [row["action"] for row in exported] == [
        "apply_workflow",
        "cancel_task",
        "backup_database",
        "restore_database",
    ]
    ends = [{name: one[name] for name in ("lane", "n", "hash")} for one in json.loads(head.read_text())["heads"]]
    assert json.loads(exported[-1]["detail"])["replaced"] == ends
    assert site.stepwire("audit", "verify", "--head", str(head)).returncode == 0
