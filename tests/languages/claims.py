"""The claims of each SDK: `handlers_sdk/<language>/capabilities.yaml`, read and checked for its form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from stepwire_conform.case import LEVEL_OF_WORD

from .proofs import FEATURES
from .sdks import FOLDER, SDKS

FILE: Final = "capabilities.yaml"
TRANSPORTS: Final = ("tcp", "ipc")
_MEMBERS: Final = {
    "sdk": str,
    "package": dict,
    "protocol": list,
    "toolchain": str,
    "transports": list,
    "curve": bool,
    "level": str,
    "features": dict,
    "tests": dict,
}


class WrongClaim(Exception):
    """A capabilities.yaml has another form, or names a test that does not exist."""


class Claims(NamedTuple):
    """The claims of one SDK. A feature is true, false, or the reason why the language does without it."""

    sdk: str
    package: str
    version: str
    protocol: tuple[str, ...]
    toolchain: str
    transports: tuple[str, ...]
    level: str
    features: Mapping[str, bool | str]
    tests: Mapping[str, str]  # the SDK's own test of what no case of the kit can see, as `FILE: NAME`


def all_claims() -> dict[str, Claims]:
    """The claims of every SDK."""
    return {name: read(FOLDER / name / FILE) for name in SDKS}


def read(path: Path) -> Claims:
    """Read one file. Raise WrongClaim with a sentence if it does not have the form that the table needs."""
    where = f"{path.parent.name}/{path.name}"
    document = yaml.safe_load(path.read_text())
    _check_members(document, where)
    if document["level"] not in LEVEL_OF_WORD:
        raise WrongClaim(f"{where}: level is {document['level']!r}: there are {', '.join(LEVEL_OF_WORD)}")
    unknown = set(document["transports"]) - set(TRANSPORTS)
    if unknown:
        raise WrongClaim(f"{where}: transports has {', '.join(sorted(unknown))}: there are {', '.join(TRANSPORTS)}")
    features = document["features"]
    if features.keys() != FEATURES.keys():
        raise WrongClaim(f"{where}: features differ from the known ones in {sorted(features.keys() ^ FEATURES.keys())}")
    for feature, value in features.items():
        if not isinstance(value, bool | str):
            raise WrongClaim(f"{where}: features.{feature} is {value!r}: it needs true, false or a reason")
    if document["curve"] is not (features["curve"] is True):
        raise WrongClaim(f"{where}: `curve` and `features.curve` differ")
    _check_tests(path.parent, features, document["tests"], where)
    return Claims(
        document["sdk"],
        document["package"]["name"],
        str(document["package"]["version"]),
        tuple(document["protocol"]),
        document["toolchain"],
        tuple(document["transports"]),
        document["level"],
        features,
        document["tests"],
    )


def _check_members(document: Any, where: str) -> None:
    if not isinstance(document, dict) or document.keys() != _MEMBERS.keys():
        raise WrongClaim(f"{where}: it needs exactly the members {', '.join(_MEMBERS)}")
    for name, kind in _MEMBERS.items():
        if not isinstance(document[name], kind):
            raise WrongClaim(f"{where}: {name} is {document[name]!r}: it needs the type {kind.__name__}")
    if document["package"].keys() != {"name", "version"}:
        raise WrongClaim(f"{where}: package needs the members name and version")


def _check_tests(folder: Path, features: Mapping[str, bool | str], tests: Mapping[str, str], where: str) -> None:
    """Each claim that only an own test proves names one, and that test exists."""
    needed = {feature for feature, cases in FEATURES.items() if not cases and features[feature] is True}
    if tests.keys() != needed:
        raise WrongClaim(f"{where}: tests differ from what needs an own test in {sorted(tests.keys() ^ needed)}")
    for feature, test in tests.items():
        file, _, name = str(test).partition(": ")
        if not name or not (folder / file).is_file() or name not in (folder / file).read_text():
            raise WrongClaim(f"{where}: tests.{feature} is {test!r}: there is no such test")
