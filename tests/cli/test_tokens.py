"""`stepwire token`: created, printed once, used at once, revoked without a signal."""

import json
from datetime import UTC, datetime, timedelta

from .a_place import Place, Serving, stop

OK, FAILURE, USAGE, NOT_FOUND, DENIED = 0, 1, 2, 3, 6


def until_tokens_changed(broker: Serving) -> None:
    assert broker.process.stderr is not None
    while json.loads(broker.process.stderr.readline())["event"] != "tokens_changed":
        pass


def test_a_token_allows_its_scopes_until_it_is_revoked(empty: Place) -> None:
    broker = empty.serve("-o", "json")
    try:
        empty.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
        made = empty.stepwire("token", "new", "watcher", "--scope", "read", "--expires", "1h")
        assert (made.code, made.err) == (OK, ""), made
        value = made.out.strip()
        assert empty.stepwire("task", "list", STEPWIRE_TOKEN=value).code == OK
        denied = empty.stepwire("task", "cancel", "1", STEPWIRE_TOKEN=value)
        assert denied.code == DENIED
        assert "lacks the scope `operate`" in denied.err
        assert "stepwire token new --scope operate" in denied.err
        (shown,) = empty.stepwire("token", "list", "--json").json
        assert (shown["name"], shown["scopes"]) == ("watcher", ["read"])
        assert value not in empty.stepwire("token", "list").out
        assert empty.stepwire("token", "revoke", "watcher").code == OK
        until_tokens_changed(broker)
        assert empty.stepwire("task", "list", STEPWIRE_TOKEN=value).code == DENIED
    finally:
        stop(broker.process)


def test_a_wrong_name_or_scope_is_refused(empty: Place) -> None:
    assert (
        "scopes are read, inspect, submit, work, operate, metrics, admin"
        in empty.stepwire("token", "new", "--scope", "write").err
    )
    assert empty.stepwire("token", "new", "two words").code == USAGE
    assert empty.stepwire("token", "revoke", "missing").code == NOT_FOUND
    assert empty.stepwire("token", "new", "ci").code == OK
    assert empty.stepwire("token", "new", "ci").code == FAILURE
    assert "holds no tokens" in empty.stepwire("token", "list", STEPWIRE_HTTP__TOKENS_FILE="other").err


def test_a_token_expires_after_90_days_unless_the_command_says_never(empty: Place) -> None:
    for name, options in (("default", ()), ("short", ("--expires", "1h")), ("long", ("--expires", "never"))):
        assert empty.stepwire("token", "new", name, *options).code == OK
    expiry = {each["name"]: each["expires_at"] for each in empty.stepwire("token", "list", "--json").json}
    left = datetime.fromisoformat(expiry["default"]) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)
    assert datetime.fromisoformat(expiry["short"]) < datetime.fromisoformat(expiry["default"])
    assert expiry["long"] is None
    assert empty.stepwire("token", "new", "wrong", "--expires", "soon").code == USAGE


def test_a_token_shows_its_namespaces_its_roles_and_its_last_use(empty: Place) -> None:
    broker = empty.serve("-o", "json")
    try:
        empty.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
        made = empty.stepwire("token", "new", "shop", "--namespaces", "shop,shop::**", "--roles", "finance")
        (unused,) = empty.stepwire("token", "list", "--json").json
        assert (unused["namespaces"], unused["roles"]) == (["shop", "shop::**"], ["finance"])
        assert unused["last_used_at"] is None
        assert empty.stepwire("task", "list", STEPWIRE_TOKEN=made.out.strip()).code == OK
        while (used := empty.stepwire("token", "list", "--json").json[0]["last_used_at"]) is None:
            pass
        assert used[13:] == ":00:00.000Z"
        denied = empty.stepwire("worker", "list", STEPWIRE_TOKEN=made.out.strip())
        assert (denied.code, "use a token without `namespaces`" in denied.err) == (NOT_FOUND, True)
    finally:
        stop(broker.process)


def test_task_show_names_the_scope_that_the_payloads_need(empty: Place) -> None:
    broker = empty.serve("-o", "json")
    try:
        empty.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
        (empty.directory / "w.yaml").write_text("name: w\nsteps: [{name: pay, handler_class: pay}]\n")
        assert empty.stepwire("workflow", "apply", "w.yaml").code == OK
        task = empty.stepwire("task", "submit", "w", "--context", '{"card": 4711}', "--json").json["task_id"]
        value = empty.stepwire("token", "new", "reader").out.strip()
        shown = empty.stepwire("task", "show", str(task), STEPWIRE_TOKEN=value)
        assert (shown.code, "4711" in shown.out) == (OK, False), shown
        assert "context, result and outputs are not shown: the token lacks the scope `inspect`" in shown.err
        assert "4711" in empty.stepwire("task", "show", str(task)).out
    finally:
        stop(broker.process)
