"""The table of features in handlers_sdk/README.md: fresh, and decided by the reports of the conformance kit."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from .claims import Claims, WrongClaim, all_claims, read
from .features import differences, stale
from .proofs import FEATURES, cases_of
from .sdks import FOLDER, ROOT, SDKS

# Where each package has its name and its version.
MANIFESTS = {
    "python": ("../../pyproject.toml", r'^name = "(.+)"\nversion = "(.+)"'),
    "go": ("go.mod", r"^module (.+)()"),
    "java": ("pom.xml", r"<groupId>(.+)</groupId>\s+<artifactId>.+</artifactId>\s+<version>(.+)</version>"),
    "node": ("package.json", r'"name": "(.+)",\s+"version": "(.+)"'),
    "ruby": ("lib/stepwire/version.rb", r'module (.+)\n\s*VERSION = "(.+)"'),
    "rust": ("Cargo.toml", r'^name = "(.+)"\nversion = "(.+)"'),
}
CLAIMS = all_claims()


def passing(claims: Claims) -> dict[str, Any]:
    """The report of a worker that does exactly what it claims."""
    kept = {name for feature, names in FEATURES.items() if claims.features[feature] is True for name in cases_of(names)}
    kept |= {f"transport.{name}" for name in claims.transports}
    cases = [{"case": name, "verdict": "pass"} for name in sorted(kept)]
    return {"level": claims.level, "problem": None, "cases": cases}


def against(tmp_path: Path, claims: Claims, report: dict[str, Any]) -> list[str]:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    return differences(claims, file)


def test_the_table_and_the_badges_show_what_the_sdks_claim() -> None:
    assert [*stale(CLAIMS)] == []


def test_a_changed_claim_makes_the_table_and_the_badge_stale() -> None:
    ruby = CLAIMS["ruby"]
    changed = ruby._replace(level="full", features={**ruby.features, "progress": False})
    assert [fault.split()[0] for fault in stale({**CLAIMS, "ruby": changed})] == [
        "handlers_sdk/README.md",
        "handlers_sdk/badges/ruby.svg",
    ]


@pytest.mark.parametrize("name", SDKS)
def test_claims_name_the_package_and_the_version_of_the_manifest(name: str) -> None:
    file, pattern = MANIFESTS[name]
    found = re.search(pattern, (FOLDER / name / file).read_text(), re.MULTILINE)
    assert found, file
    assert CLAIMS[name].sdk == name
    assert CLAIMS[name].package.lower().startswith(found[1].lower())
    assert found[2] in ("", CLAIMS[name].version)


@pytest.mark.parametrize("name", SDKS)
def test_the_changelog_of_each_sdk_has_its_version(name: str) -> None:
    if name != "python":  # its changelog is that of the product
        assert re.search(
            rf"^## {re.escape(CLAIMS[name].version)}\b", (FOLDER / name / "CHANGELOG.md").read_text(), re.MULTILINE
        )


def test_each_package_has_the_licence() -> None:
    licence = (ROOT / "LICENSE").read_text()
    assert [name for name in SDKS if name != "python" and (FOLDER / name / "LICENSE").read_text() != licence] == []


@pytest.mark.parametrize("name", SDKS)
def test_a_report_that_confirms_every_claim_shows_no_difference(tmp_path: Path, name: str) -> None:
    assert against(tmp_path, CLAIMS[name], passing(CLAIMS[name])) == []


@pytest.mark.parametrize("verdict", ["fail", "missing", "non-strict"])
def test_a_claim_whose_case_does_not_pass_is_a_difference(tmp_path: Path, verdict: str) -> None:
    report = passing(CLAIMS["go"])
    next(case for case in report["cases"] if case["case"] == "errors.retry")["verdict"] = verdict
    expected = f"go: claims retry_after, and these cases do not pass: errors.retry ({verdict})"
    assert against(tmp_path, CLAIMS["go"], report) == [expected]


def test_a_claim_whose_case_did_not_run_is_a_difference(tmp_path: Path) -> None:
    report = passing(CLAIMS["go"])
    report["cases"] = [case for case in report["cases"] if case["case"] != "quiet.tstp"]
    assert against(tmp_path, CLAIMS["go"], report) == [
        "go: claims quiet, and these cases do not pass: quiet.tstp (not run)"
    ]


def test_a_feature_that_passes_and_is_not_claimed_is_a_difference(tmp_path: Path) -> None:
    java = CLAIMS["java"]
    report = passing(java)
    report["cases"].append({"case": "transport.ipc", "verdict": "pass"})
    silent = java._replace(features={**java.features, "deadline": "the JVM has no deadline"})
    assert against(tmp_path, silent, report) == [
        "java: does not claim deadline, and its cases pass: timeout.deadline",
        "java: does not claim ipc, and its cases pass: transport.ipc",
    ]


def test_a_level_other_than_the_claimed_one_is_a_difference(tmp_path: Path) -> None:
    report = passing(CLAIMS["node"]) | {"level": "1"}
    assert against(tmp_path, CLAIMS["node"], report) == ["node: claims the level hardened, and the run reached 1"]


def test_a_missing_report_is_a_difference(tmp_path: Path) -> None:
    assert "there is no report" in differences(CLAIMS["go"], tmp_path / "none.json")[0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"level": "best"}, "level is 'best'"),
        ({"transports": ["tcp", "udp"]}, "transports has udp"),
        ({"curve": False}, "`curve` and `features.curve` differ"),
        ({"colour": "red"}, "it needs exactly the members"),
        ({"tests": {}}, "tests differ from what needs an own test"),
        (
            {"tests": {"logger": "worker_test.go: TestNothing", "testing_harness": "worker_test.go: TestA"}},
            "there is no such test",
        ),
    ],
)
def test_a_wrong_file_of_claims_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    (tmp_path / "worker_test.go").write_text("func TestA")
    file = tmp_path / "capabilities.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load((FOLDER / "go/capabilities.yaml").read_text()) | change))
    with pytest.raises(WrongClaim, match=re.escape(sentence)):
        read(file)
