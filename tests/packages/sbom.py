"""The software bill of materials of a release: CycloneDX 1.6, made from the lock of the broker.

`python -m tests.packages.sbom > stepwire.cdx.json`. The lock names each package with its version and the SHA-256 of
each file that an installer may take, for all systems and Python versions; `marker` says where a package is needed.
"""

import json
import re
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "tests/requirements/broker.lock"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

_PACKAGE: Final = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$")
_HASH: Final = re.compile(r"\s+--hash=sha256:([0-9a-f]{64})")


class Locked(NamedTuple):
    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def locked(lock: Path) -> Iterator[Locked]:
    """The packages of a lock. Raises ValueError for a package without a hash, and for a line of another form."""
    package: Locked | None = None
    for line in lock.read_text().splitlines():
        if found := _HASH.match(line):
            assert package is not None
            package = package._replace(hashes=(*package.hashes, found[1]))
        elif line.strip() and not line.lstrip().startswith("#"):
            if package is not None:
                yield _checked(package)
            match = _PACKAGE.fullmatch(line)
            if match is None:
                raise ValueError(f"{lock}: {line!r} is not a package with an exact version")
            package = Locked(match["name"], match["version"], match["marker"] or "", ())
    if package is not None:
        yield _checked(package)


def document(lock: Path = LOCK) -> dict[str, Any]:
    components = [_component(package) for package in locked(lock)]
    name, version = PROJECT["name"], PROJECT["version"]
    # The same lock gives the same document, so a release can be built again and compared.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"{name} {version} {json.dumps(components, sort_keys=True)}")
    subject = {"type": "application", "bom-ref": _purl(name, version), "name": name, "version": version}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "component": {
                **subject,
                "purl": _purl(name, version),
                "licenses": [{"license": {"id": PROJECT["license"]}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": subject["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }


def _component(package: Locked) -> dict[str, Any]:
    purl = _purl(package.name, package.version)
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
    }
    if package.marker:
        component["properties"] = [{"name": "stepwire:marker", "value": package.marker}]
    return component


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"


def _checked(package: Locked) -> Locked:
    if not package.hashes:
        raise ValueError(f"{package.name} has no hash")
    return package


if __name__ == "__main__":
    print(json.dumps(document(), indent=2))
