"""Why a task or a step is not running, over HTTP, from a real broker."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from stepwire_broker.core.definitions.settings import LimitSettings

from .running_api import Api, running, settings_in


def submit(api: Api, **members: object) -> int:
    answer = api.call("POST", "/v1/tasks", {"workflow": "order", **members})
    assert answer.status == 201, answer
    task_id: int = answer.json["task_id"]
    return task_id


def test_a_task_names_the_step_that_it_waits_for(api: Api) -> None:
    task_id = submit(api)
    why = api.call("GET", f"/v1/tasks/{task_id}/why").json
    since = why.pop("since")
    assert why == {
        "task_id": task_id,
        "state": "running",
        "code": "no_worker_offers",
        "message": "`reserve`: no worker offers `shop.reserve` (no worker is connected)",
        "hint": None,
        "next": None,
        "step_id": task_id + 1,
        "step": "reserve",
    }
    assert since == api.call("GET", f"/v1/tasks/{task_id}").json["created_at"]


def code_of(step: dict[str, Any]) -> str | None:
    return None if step["reason"] is None else str(step["reason"]["code"])


def test_a_step_is_shown_and_explained_by_its_name(api: Api) -> None:
    task_id = submit(api)
    why = api.call("GET", f"/v1/tasks/{task_id}/steps/charge/why").json
    assert (why["step_id"], why["state"], why["code"]) == (task_id + 2, "waiting", "waits_for")
    assert why["message"] == "waits for `reserve` (no worker offers `shop.reserve` (no worker is connected))"
    shown = api.call("GET", f"/v1/tasks/{task_id}/steps/charge").json
    reason = {name: why[name] for name in ("code", "message", "since", "hint", "next")}
    assert shown["reason"] == reason
    assert api.call("GET", f"/v1/steps/{task_id + 2}").json == shown


def test_the_open_steps_of_a_task_have_reasons(api: Api) -> None:
    task_id = submit(api)
    steps = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    assert list(map(code_of, steps)) == ["no_worker_offers", "waits_for"]
    api.call("POST", f"/v1/tasks/{task_id}/pause")
    steps = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    assert list(map(code_of, steps)) == ["paused", "waits_for"]
    api.call("POST", f"/v1/tasks/{task_id}/cancel")
    steps = api.call("GET", f"/v1/tasks/{task_id}").json["steps"]
    assert list(map(code_of, steps)) == ["task_cancelled"] * 2
    assert api.call("GET", f"/v1/tasks/{task_id}/why").json["code"] == "cancelled"


def test_a_held_step_has_a_hint(served: Api) -> None:
    task_id = submit(served, context={"network": "down"})
    served.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000")
    why = served.call("GET", f"/v1/tasks/{task_id}/why").json
    assert (why["code"], why["step"]) == ("held", "charge")
    assert why["hint"].endswith(f"POST /v1/steps/{task_id + 2}/resolve")
    assert why["next"] == {"code": "resolve_step", "step_id": task_id + 2}
    assert served.call("GET", f"/v1/tasks/{task_id}/steps/reserve/why").json["code"] == "completed"


def test_a_task_that_is_not_in_memory_is_explained_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    settings = msgspec.structs.replace(settings_in(tmp_path), limits=LimitSettings(max_active_tasks=1))
    with running(tmp_path, settings) as api:
        workflow = {"name": "order", "steps": [{"name": "reserve", "handler_class": "shop.reserve"}]}
        assert api.call("POST", "/v1/workflows", workflow).status == 201
        submit(api)
        answer = api.call("POST", "/v1/tasks", {"workflow": "order"})
        assert answer.json["state"] == "pending"
        task_id = answer.json["task_id"]
        assert api.call("GET", f"/v1/tasks/{task_id}/why").json["code"] == "no_worker_offers"
        step = api.call("GET", f"/v1/tasks/{task_id}/steps/reserve").json
        assert code_of(step) == "no_worker_offers"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/tasks/999999/why", "GET /v1/tasks lists"),
        ("/v1/tasks/999999/steps/a", "GET /v1/tasks lists"),
        ("/v1/tasks/999999/steps/a/why", "GET /v1/tasks lists"),
        ("/v1/tasks/{task_id}/steps/nothing", "its steps: reserve, charge"),
        ("/v1/tasks/{task_id}/steps/nothing/why", "its steps: reserve, charge"),
    ],
)
def test_an_unknown_task_or_step_is_404_with_a_hint(api: Api, path: str, hint: str) -> None:
    answer = api.call("GET", path.format(task_id=submit(api)))
    assert (answer.status, answer.code) == (404, "not_found")
    assert answer.json["hint"].startswith(hint)


def test_the_id_of_a_step_in_place_of_a_task_and_the_reverse_are_named(api: Api) -> None:
    task_id = submit(api)
    step_id = api.call("GET", f"/v1/tasks/{task_id}").json["steps"][0]["step_id"]
    for path in ("", "?wait_ms=0", "/why", "/steps/reserve", "/events"):
        answer = api.call("GET", f"/v1/tasks/{step_id}{path}")
        assert (answer.status, answer.code, answer.json["next"]) == (
            404,
            "not_found",
            {"code": "show_task", "task_id": task_id},
        )
        assert answer.json["detail"].endswith(f"{step_id} is the step `reserve` of task {task_id}")
    answer = api.call("GET", f"/v1/steps/{task_id}")
    assert answer.json["detail"] == f"there is no step {task_id}: {task_id} is a task"
    assert answer.json["next"] == {"code": "name_a_step", "task_id": task_id, "names": ["reserve", "charge"]}
    assert api.call("GET", "/v1/steps/999999").json["next"] == {"code": "list_tasks"}


# -- large outputs ----------------------------------------------------------------------------------------------------


def test_outputs_that_are_too_large_together_are_marked_as_omitted(
    served: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = submit(served)
    whole: Any = served.call("GET", f"/v1/tasks/{task_id}?wait_ms=20000").json
    sizes = [step["output_bytes"] for step in whole["steps"]]
    assert [step["output_omitted"] for step in whole["steps"]] == [False, False]
    monkeypatch.setattr("stepwire_broker.api.reading.OUTPUTS_BYTES_MAX", sum(sizes) - 1)
    part = served.call("GET", f"/v1/tasks/{task_id}").json
    assert [step["output_omitted"] for step in part["steps"]] == [False, True]
    assert [step["output"] for step in part["steps"]] == [{"seats": 2}, None]
    assert part["result"] == whole["result"] == {"charge": {"total": 1.5}}
    assert served.call("GET", f"/v1/steps/{task_id + 2}").json["output"] == {"total": 1.5}
    monkeypatch.setattr("stepwire_broker.api.reading.RESULT_BYTES_MAX", sizes[1] - 1)
    less = served.call("GET", f"/v1/tasks/{task_id}").json
    assert (less["result"], less["result_omitted"]) == (None, True)
