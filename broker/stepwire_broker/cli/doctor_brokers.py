"""The findings of `stepwire doctor` about the brokers of a deployment, as one of them sees them."""

from collections.abc import Iterator
from typing import Any

from stepwire.client import Client, ClientError

from .finding import Finding

NO_OWNER = "wait until a broker takes it: within a lease and two beats; then look at `stepwire broker list`"


def findings(client: Client) -> Iterator[Finding]:
    """Examine the other brokers and the lanes. Silent for a token that sees only some namespaces."""
    try:
        found, lanes = client.brokers(), client.lanes()["lanes"]
    except ClientError:
        return
    yield from of_brokers(found["broker"], found["brokers"])
    yield from of_lanes(lanes, [one["broker"] for one in found["brokers"] if one["is_alive"]])


def of_brokers(answering: str, brokers: list[dict[str, Any]]) -> Iterator[Finding]:
    """Brokers that are dead, of another version, or of another configuration than the one that answers."""
    alive = [one for one in brokers if one["is_alive"]]
    if len(brokers) > 1:
        shown = ", ".join(f"{one['broker']} with {_lanes(one['lanes'])}" for one in alive)
        yield Finding("ok", "brokers", f"{len(alive)} of {len(brokers)} alive: {shown}")
    for one in brokers:
        if not one["is_alive"]:
            text = f"{one['broker']} has not beaten for {(one['beat_age_ms'] or 0) / 1000:.0f} s and counts as dead"
            yield Finding("note", "brokers", text, "start it again, or ignore it: other brokers take its lanes")
    versions = {one["broker"]: one["version"] for one in alive}
    if len(set(versions.values())) > 1:
        text = "brokers of different versions: " + ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding("note", "brokers", text, "finish the upgrade: lanes move only to brokers of the newest version")
    differing = [one["broker"] for one in alive if one["config_differs"]]
    if differing:
        text = f"another configuration than {answering}: {', '.join(differing)}"
        todo = "make `execution`, `executors.exec.commands`, `dispatch` and `limits` equal at every broker"
        yield Finding("warning", "brokers", text, todo)


def of_lanes(lanes: list[dict[str, Any]], alive: list[str]) -> Iterator[Finding]:
    """Lanes whose tasks do not go on now."""
    free = [str(lane["lane"]) for lane in lanes if lane["broker"] not in alive]
    if free:
        yield Finding("warning", "lanes", f"no living broker owns lane {', '.join(free)}, whose tasks wait", NO_OWNER)
    for lane in lanes:
        if lane["stalled"]:
            yield Finding("red", "lanes", f"lane {lane['lane']} cannot be written: {lane['stalled']}")


def _lanes(lanes: list[int]) -> str:
    return f"lane {', '.join(map(str, lanes))}" if lanes else "no lane"
