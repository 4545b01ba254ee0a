"""`stepwire route` and the rule commands of `stepwire executor`: print and change where steps run."""

from typing import Any, Final

import click

from . import completing, output
from .connection import broker_client
from .failure import Exit, Failure
from .options import Options, StepwireCommand

COLUMNS: Final = [
    output.Column("no.", "number"),
    output.Column("match", "match"),
    output.Column("goes to", "to"),
    output.Column("canary", "canary"),
    output.Column("shadow", "shadow"),
    output.Column("from", "origin"),
]


SEGMENTS_MIN: Final = 3  # of a path: the namespace, which may have several, the workflow and the step


@click.command(cls=StepwireCommand)
@click.argument("path", metavar="NAMESPACE::WORKFLOW::STEP")
@click.option("--selector", metavar="KEY=VALUE,..", help="The step's own worker_selector; or `local`.")
@click.pass_obj
def route(options: Options, path: str, selector: str | None) -> None:
    """Print where a step with this path would run: the rule, the executor, the workers, and a rule that nearly matched.

    The answer comes from the dispatcher itself.
    """
    segments = path.split("::")
    if len(segments) < SEGMENTS_MIN or "" in segments:
        raise Failure(Exit.USAGE, f"{path} is not the path of a step: use a form like default::order::charge")
    if selector is not None and selector.strip().lower() != "local":
        _labels(selector)
    with broker_client(options) as client:
        answer = client.route(path, selector)
    lines = [answer["reason"]]
    near = answer["nearly"]
    if near is not None:
        lines.append(f"rule {near['number']} ({near['match']}) nearly matches: {near['why']}")
    output.one(options, answer, "\n".join(lines))


@click.command(name="routes", cls=StepwireCommand)
@click.pass_obj
def routes(options: Options) -> None:
    """List the rules in order, both configured and set at run time."""
    with broker_client(options) as client:
        routing = client.rules()
    if options.output != "text":
        output.several(options, routing["rules"], COLUMNS, "")
        return
    output.several(options, [_row(rule) for rule in routing["rules"]], COLUMNS, "there are no rules")
    output.note(
        options,
        f"steps that match no rule go to {routing['default_executor']};"
        f" default_execution_mode is {routing['default_execution_mode']}",
    )


@click.command(name="route", cls=StepwireCommand)
@click.argument("match", metavar="PATTERN")
@click.option(
    "--executor", metavar="KEY", shell_complete=completing.executors, help="Executor of the steps whose path matches."
)
@click.option("--selector", metavar="KEY=VALUE,..", help="Labels that their workers must have.")
@click.option(
    "--canary-percent", type=click.FloatRange(0, 100), metavar="N", help="Percentage of tasks sent to the canary."
)
@click.option("--canary-executor", metavar="KEY", help="Executor of the canary.")
@click.option("--canary-selector", metavar="KEY=VALUE,..", help="Worker labels of the canary.")
@click.option("--no-canary", is_flag=True, default=None, help="Remove the canary from the rule.")
@click.option("--shadow-executor", metavar="KEY", help="Executor that gets copies of the steps, for comparison.")
@click.option("--shadow-selector", metavar="KEY=VALUE,..", help="Worker labels of the shadow.")
@click.option(
    "--shadow-percent", type=click.FloatRange(0, 100), metavar="N", help="Percentage of tasks that are copied. [100]"
)
@click.option("--no-shadow", is_flag=True, default=None, help="Remove the shadow from the rule.")
@click.option("--reset", is_flag=True, help="Remove what was set at run time for this pattern.")
@click.pass_obj
def set_route(options: Options, /, match: str, reset: bool, **changes: Any) -> None:
    """Set or change a routing rule while the broker runs. Omitted options keep their value. Rules survive restarts.

    A changed rule keeps its position; a new rule comes first. Dispatched steps stay where they are.

    Switch all tasks to the canary, or back with 0: stepwire executor route "shop::**::charge" --canary-percent 100
    """
    with broker_client(options) as client:
        if reset:
            if any(value is not None for value in changes.values()):
                raise Failure(Exit.USAGE, "--reset cannot be combined with other options: it removes the whole rule")
            removed = client.remove_rule(match)
            output.one(options, removed, f"the run-time rule for {match} is removed")
            return
        before = next((rule for rule in client.rules()["rules"] if rule["match"] == match), None)
        rule = client.set_rule(_changed_rule(match, before, changes))
    output.one(options, rule, f"the rule for {match} is set; next: stepwire executor routes")


@click.command(name="shadows", cls=StepwireCommand)
@click.pass_obj
def shadows(options: Options) -> None:
    """List how shadow copies compared with the steps themselves, with the last differences."""
    with broker_client(options) as client:
        comparisons = client.shadows()["shadows"]
    output.several(options, comparisons, SHADOWS, "no shadow copy was sent yet")
    if options.output == "text":
        for one in comparisons:
            for each in one["lately"]:
                output.note(options, f"{one['handler_class']}: task {each['task_id']} {each['what']} at {each['at']}")


SHADOWS: Final = [
    output.Column("handler", "handler_class"),
    output.Column("rule", "match"),
    output.Column("at", "executor"),
    *(output.Column(name.replace("_", " "), name) for name in ("equal", "differs", "failed", "not_compared")),
    *(output.Column(name, name) for name in ("lost", "dropped")),
]


def _changed_rule(match: str, before: dict[str, Any] | None, changes: dict[str, Any]) -> dict[str, Any]:
    """The rule as it was, with the options of the command line applied."""
    rule: dict[str, Any] = {"match": match}
    before = before or {}
    rule["executor"] = changes["executor"] or before.get("executor")
    rule["worker_selector"] = _labels(changes["selector"]) or before.get("worker_selector") or None
    for name in ("canary", "shadow"):
        given = {
            "percent": changes[f"{name}_percent"],
            "executor": changes[f"{name}_executor"],
            "worker_selector": _labels(changes[f"{name}_selector"]),
        }
        given = {key: value for key, value in given.items() if value is not None}
        if changes[f"no_{name}"]:
            if given:
                raise Failure(Exit.USAGE, f"--no-{name} removes the {name}: it excludes the other --{name} options")
            continue
        target = {key: value for key, value in (before.get(name) or {}).items() if value not in (None, {})} | given
        if target:
            if name == "canary" and "percent" not in target:
                raise Failure(Exit.USAGE, "a canary needs --canary-percent: the percentage of tasks sent to it")
            rule[name] = target
    return rule


def _labels(text: str | None) -> dict[str, str] | None:
    if not text:
        return None
    labels = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise Failure(Exit.USAGE, f"{text!r}: labels have a form like gpu=true,region=eu")
        labels[key.strip()] = value.strip()
    return labels


def _row(rule: dict[str, Any]) -> dict[str, Any]:
    origin = rule["origin"] if rule["hidden_by"] is None else f"{rule['origin']}; hidden by {rule['hidden_by']}"
    canary, shadow = rule["canary"], rule["shadow"]
    return {
        "number": rule["number"],
        "match": rule["match"],
        "to": _where(rule) or "the default executor",
        "canary": "" if canary is None else f"{canary['percent']:g} % {_where(canary)} ({_sides(rule)})",
        "shadow": "" if shadow is None else f"{shadow['percent']:g} % {_where(shadow)}",
        "origin": origin,
    }


def _where(target: dict[str, Any]) -> str:
    labels = ",".join(f"{key}={value}" for key, value in target["worker_selector"].items())
    return " ".join(part for part in (target["executor"], labels) if part)


def _sides(rule: dict[str, Any]) -> str:
    steps = rule["canary_steps"] + rule["other_steps"]
    return f"{rule['canary_steps']} of {steps} steps so far"
