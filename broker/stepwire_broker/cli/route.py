"""`stepwire route`, and the rules of `stepwire executor`: where steps go, why, and how that is changed."""

from typing import Any, Final

import click

from . import output
from .connection import broker
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


@click.command(cls=StepwireCommand)
@click.argument("path", metavar="NAMESPACE::WORKFLOW::STEP")
@click.option("--selector", metavar="KEY=VALUE,..", help="What the step itself asks for; or the word local.")
@click.pass_obj
def route(options: Options, path: str, selector: str | None) -> None:
    """Say where a step of this path goes: by which rule, to which executor and workers, and which rule nearly matched.

    It is what the dispatcher itself decides.
    """
    with broker(options) as client:
        found = client.route(path, selector)
    lines = [found["reason"]]
    near = found["nearly"]
    if near is not None:
        lines.append(f"rule {near['number']} ({near['match']}) nearly matches: {near['why']}")
    output.one(options, found, "\n".join(lines))


@click.command(name="routes", cls=StepwireCommand)
@click.pass_obj
def routes(options: Options) -> None:
    """Print the rules in their order: those of the configuration and those set at run time."""
    with broker(options) as client:
        found = client.rules()
    if options.output != "text":
        output.several(options, found["rules"], COLUMNS, "")
        return
    output.several(options, [_row(rule) for rule in found["rules"]], COLUMNS, "there are no rules")
    output.note(
        options,
        f"what no rule takes goes to {found['default_executor']};"
        f" the default_execution_mode is {found['default_execution_mode']}",
    )


@click.command(name="route", cls=StepwireCommand)
@click.argument("match", metavar="PATTERN")
@click.option("--executor", metavar="KEY", help="Steps whose path matches go there.")
@click.option("--selector", metavar="KEY=VALUE,..", help="And to workers with these labels.")
@click.option("--canary-percent", type=click.FloatRange(0, 100), metavar="N", help="So many tasks in a hundred go to:")
@click.option("--canary-executor", metavar="KEY", help="this executor,")
@click.option("--canary-selector", metavar="KEY=VALUE,..", help="or workers with these labels.")
@click.option("--no-canary", is_flag=True, default=None, help="The rule has a canary no more.")
@click.option("--shadow-executor", metavar="KEY", help="Copies of steps go there too, and are compared.")
@click.option("--shadow-selector", metavar="KEY=VALUE,..", help="Or to workers with these labels.")
@click.option("--shadow-percent", type=click.FloatRange(0, 100), metavar="N", help="Of the tasks; all, if not said.")
@click.option("--no-shadow", is_flag=True, default=None, help="The rule has a shadow no more.")
@click.option("--reset", is_flag=True, help="Forget what was set at run time for this pattern.")
@click.pass_obj
def set_route(options: Options, /, match: str, reset: bool, **said: Any) -> None:
    """Set a rule while the broker runs, or change one: what is not said stays as it is. It is kept over restarts.

    A rule that is there keeps its place, a new one comes first. What was handed out stays where it is.

    A canary of 0 or 100 % is a switch: stepwire executor route "shop::**::charge" --canary-percent 100
    """
    with broker(options) as client:
        if reset:
            if any(value is not None for value in said.values()):
                raise Failure(Exit.USAGE, "--reset stands alone: it forgets the whole rule")
            done = client.remove_rule(match)
            output.one(options, done, f"{match}: what was set at run time is forgotten")
            return
        before = next((rule for rule in client.rules()["rules"] if rule["match"] == match), None)
        done = client.set_rule(_rule(match, before, said))
    output.one(options, done, f"{match} is routed so from now on; next: stepwire executor routes")


@click.command(name="shadows", cls=StepwireCommand)
@click.pass_obj
def shadows(options: Options) -> None:
    """Print how the copies of steps compared with the steps themselves, and the last differences."""
    with broker(options) as client:
        found = client.shadows()
    output.several(options, found["shadows"], SHADOWS, "no shadow was sent yet")
    if options.output == "text":
        for one in found["shadows"]:
            for each in one["lately"]:
                output.note(options, f"{one['handler_class']}: task {each['task_id']} {each['what']} at {each['at']}")


SHADOWS: Final = [
    output.Column("handler", "handler_class"),
    output.Column("rule", "match"),
    output.Column("at", "executor"),
    *(output.Column(name.replace("_", " "), name) for name in ("equal", "differs", "failed", "not_compared")),
    *(output.Column(name, name) for name in ("lost", "dropped")),
]


def _rule(match: str, before: dict[str, Any] | None, said: dict[str, Any]) -> dict[str, Any]:
    rule: dict[str, Any] = {"match": match}
    before = before or {}
    rule["executor"] = said["executor"] or before.get("executor")
    rule["worker_selector"] = _labels(said["selector"]) or before.get("worker_selector") or None
    for name in ("canary", "shadow"):
        if said[f"no_{name}"]:
            if any(said[f"{name}_{part}"] is not None for part in ("percent", "executor", "selector")):
                raise Failure(Exit.USAGE, f"--no-{name} takes the {name} away: nothing else can be said of it")
            continue
        aside = {key: value for key, value in (before.get(name) or {}).items() if value not in (None, {})}
        given = {
            "percent": said[f"{name}_percent"],
            "executor": said[f"{name}_executor"],
            "worker_selector": _labels(said[f"{name}_selector"]),
        }
        aside |= {key: value for key, value in given.items() if value is not None}
        if aside:
            if name == "canary" and "percent" not in aside:
                raise Failure(Exit.USAGE, "a canary needs --canary-percent: how many tasks in a hundred are its")
            rule[name] = aside
    return rule


def _labels(written: str | None) -> dict[str, str] | None:
    if not written:
        return None
    labels = {}
    for part in written.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise Failure(Exit.USAGE, f"{written!r}: labels have a form like gpu=true,region=eu")
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
