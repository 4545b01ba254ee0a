"""The refusal of a command for a workflow that is not stored: it names the workflow or version that may be meant."""

from collections.abc import Iterable

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.reading.nearest import nearest

NAMES_MAX = 10  # in a hint


def unknown_workflow(
    namespace: str,
    name: str,
    version: str | None,
    known: Iterable[tuple[str, str, str]],
    otherwise: HintCode = HintCode.APPLY_WORKFLOW,
) -> CommandRefused:
    """Refuse the command. `otherwise` is the next action if no workflow has a similar name. `known` are the stored
    versions as (namespace, name, version), in the order in which they were applied."""
    versions = [each for each in known if each[:2] == (namespace, name)]
    full_name = f"{namespace}::{name}"
    if versions and version is not None:
        names = tuple(each[2] for each in versions[-NAMES_MAX:])
        return CommandRefused(
            "not_found", f"{full_name} has no version {version}", Hint(HintCode.NAME_A_VERSION, names=names)
        )
    meant = _meant(namespace, name, known)
    hint = Hint(HintCode.NAME_A_WORKFLOW, names=meant) if meant else Hint(otherwise)
    return CommandRefused("not_found", f"there is no workflow {full_name}", hint)


def _meant(namespace: str, name: str, known: Iterable[tuple[str, str, str]]) -> tuple[str, ...]:
    """The workflows of this name in other namespaces, or the one with the most similar name."""
    namespaces: dict[str, list[str]] = {}  # by name
    for place, each in dict.fromkeys(each[:2] for each in known):
        namespaces.setdefault(each, []).append(place)
    if name in namespaces:
        return tuple(f"{place}::{name}" for place in namespaces[name][:NAMES_MAX])
    similar = nearest(name, namespaces)
    if similar is None:
        return ()
    place = nearest(namespace, namespaces[similar]) or namespaces[similar][0]
    return (f"{place}::{similar}",)
