"""The locks hold what pyproject.toml asks for, with hashes, and the release describes what is in them."""

import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from . import audit, sbom

ROOT = Path(__file__).parents[2]
LOCKS = {"broker": ("broker",), "dev": ("broker", "sealed", "dev")}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def asked(*extras: str) -> list[Requirement]:
    texts = [*sbom.PROJECT["dependencies"]]
    texts += [text for extra in extras for text in sbom.PROJECT["optional-dependencies"][extra]]
    return [one for one in map(Requirement, texts) if one.name != "stepwire"]


@pytest.mark.parametrize(("name", "extras"), LOCKS.items(), ids=LOCKS)
def test_a_lock_holds_every_requirement_in_an_allowed_version(name: str, extras: tuple[str, ...]) -> None:
    versions = {normal(one.name): one.version for one in sbom.locked(ROOT / f"tests/requirements/{name}.lock")}
    unmet = [str(one) for one in asked(*extras) if versions.get(normal(one.name), "") not in one.specifier]
    assert unmet == [], "run: sh tests/requirements/lock.sh"


@pytest.mark.parametrize("name", ["broker", "dev", "audit"])
def test_every_package_of_a_lock_has_a_hash_and_comes_from_no_other_place(name: str) -> None:
    packages = list(sbom.locked(ROOT / f"tests/requirements/{name}.lock"))
    assert len(packages) > 10
    assert all(one.hashes for one in packages)


def test_a_package_without_a_hash_or_an_exact_version_is_refused(tmp_path: Path) -> None:
    for text in ("click==8.5.1\n", "click>=8\n", "click @ git+ssh://example/click\n"):
        (tmp_path / "lock").write_text(text)
        with pytest.raises(ValueError, match="click"):
            list(sbom.locked(tmp_path / "lock"))


def test_the_bill_of_materials_names_each_package_of_the_lock_with_its_hashes() -> None:
    document = sbom.document()
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["version"] == sbom.PROJECT["version"]
    packages = {f"pkg:pypi/{normal(one.name)}@{one.version}": one for one in sbom.locked(sbom.LOCK)}
    assert {each["purl"] for each in document["components"]} == set(packages)
    for component in document["components"]:
        assert tuple(each["content"] for each in component["hashes"]) == packages[component["purl"]].hashes
    assert document == sbom.document(), "the same lock gives the same document"


@pytest.mark.parametrize(
    ("script", "code", "text"),
    [
        ("print('No known vulnerabilities found')", audit.OK, "No known"),
        ("print('click Dependency not found and could not be audited')", audit.NOT_AUDITED, "of 1 packages"),
        ("print('Found 1 known vulnerability in 1 package'); raise SystemExit(1)", audit.VULNERABLE, "Found 1"),
        (
            "import sys; sys.exit('ConnectionError: no route to host')",
            audit.NOT_AUDITED,
            "not audited: ConnectionError",
        ),
    ],
)
def test_an_audit_without_its_database_is_not_audited_rather_than_ok(
    tmp_path: Path, script: str, code: int, text: str
) -> None:
    (tmp_path / "pip_audit.py").write_text(script)
    ended = audit.audit([sys.executable, str(tmp_path / "pip_audit.py")], tmp_path / "lock")
    assert (ended[0], text in ended[1]) == (code, True), ended
    assert audit.worst([audit.OK, code]) == code
    assert audit.audit(["/nowhere/pip-audit"], tmp_path)[0] == audit.NOT_AUDITED


def test_installations_of_the_tests_and_of_the_container_check_the_hashes() -> None:
    for file in ("tests/venv.sh", "examples/operating/Containerfile"):
        installs = [line for line in (ROOT / file).read_text().splitlines() if re.search(r"\bpip install\b", line)]
        assert installs, file
        assert all("--require-hashes" in line or "--no-deps" in line for line in installs), file
