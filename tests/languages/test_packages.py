"""The checks of the SDKs' packages, against archives with a file too many and one too few. Needs no other language."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from .packages import FILE, MODULE, PACKAGES, TEXTS, Work, WrongPackage
from .release import quickstart
from .sdks import SDKS


def tar(path: Path, names: set[str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in sorted(names):
            archive.addfile(tarfile.TarInfo(name))
    return path


def gem(work: Work, names: set[str]) -> list[Path]:
    inner = tar(work.scratch / "data.tar.gz", names).read_bytes()
    with tarfile.open(work.scratch / "s.gem", "w") as archive:
        member = tarfile.TarInfo("data.tar.gz")
        member.size = len(inner)
        archive.addfile(member, io.BytesIO(inner))
    return [work.scratch / "s.gem"]


def tarball(work: Work, names: set[str]) -> list[Path]:
    return [tar(work.scratch / "s.tgz", {f"package/{name}" for name in names})]


def crate(work: Work, names: set[str]) -> list[Path]:
    return [tar(work.scratch / "s.crate", {f"stepwire-{work.version}/{name}" for name in names})]


def module(work: Work, names: set[str]) -> list[Path]:
    with zipfile.ZipFile(work.scratch / "s.zip", "w") as archive:
        for name in sorted(names):
            archive.writestr(f"{MODULE}@v{work.version}/{name}", "")
    return [work.scratch / "s.zip"]


def jars(work: Work, names: set[str]) -> list[Path]:
    """The three jars. `names` are those of the first one, with its sources in place of classes."""
    files = [work.scratch / f"s{kind}.jar" for kind in ("", "-sources", "-javadoc")]
    contents = [
        {name.replace(".java", ".class") for name in names} | {"io/stepwire/Worker$Inner.class"},
        names,
        {"index.html", "io/stepwire/Worker.html"},
    ]
    for file, inside in zip(files, contents, strict=True):
        with zipfile.ZipFile(file, "w") as archive:
            for name in sorted(inside):
                archive.writestr(name, "")
    return [*files, work.scratch / "s.pom"]


def expected(work: Work, language: str) -> set[str]:
    texts = TEXTS | {FILE}
    match language:
        case "ruby":
            return work.tracked("lib/", "exe/") | texts
        case "node":
            return work.tracked("src/") | texts | {"package.json", "bin/conform.js", "bin/driver.js"}
        case "rust":
            return work.tracked("src/") | texts | {"build.rs", "Cargo.toml", "Cargo.toml.orig", "Cargo.lock"}
        case "go":
            return work.tracked()
        case _:
            prefix = "src/main/java/"
            maven = {f"META-INF/maven/io.stepwire/stepwire/{name}" for name in ("pom.xml", "pom.properties")}
            java = {name.removeprefix(prefix) for name in work.tracked(prefix)}
            return java | maven | {"META-INF/MANIFEST.MF", "META-INF/LICENSE"}


ARCHIVES: dict[str, Callable[[Work, set[str]], list[Path]]] = {
    "ruby": gem,
    "node": tarball,
    "rust": crate,
    "go": module,
    "java": jars,
}
LEFTOVERS = {
    "ruby": "lib/stepwire/trace.log",
    "node": "tests/worker.test.js",
    "rust": "tests/handlers.rs",
    "go": ".build/stepwire-conform",
    "java": "io/stepwire/WorkerTest.java",
}
LICENCES = {"java": "META-INF/LICENSE"}


@pytest.mark.parametrize("language", PACKAGES)
def test_a_package_with_exactly_its_files_is_accepted(tmp_path: Path, language: str) -> None:
    work = Work(tmp_path, SDKS[language].folder)
    PACKAGES[language].check(work, ARCHIVES[language](work, expected(work, language)))


@pytest.mark.parametrize("language", PACKAGES)
def test_a_package_with_a_leftover_of_the_tests_is_refused(tmp_path: Path, language: str) -> None:
    work = Work(tmp_path, SDKS[language].folder)
    archive = ARCHIVES[language](work, expected(work, language) | {LEFTOVERS[language]})
    with pytest.raises(WrongPackage, match="should not"):
        PACKAGES[language].check(work, archive)


@pytest.mark.parametrize("language", PACKAGES)
def test_a_package_without_its_licence_is_refused(tmp_path: Path, language: str) -> None:
    work = Work(tmp_path, SDKS[language].folder)
    archive = ARCHIVES[language](work, expected(work, language) - {LICENCES.get(language, "LICENSE")})
    with pytest.raises(WrongPackage, match="lacks"):
        PACKAGES[language].check(work, archive)


@pytest.mark.parametrize("language", PACKAGES)
def test_the_readme_of_each_sdk_has_the_files_of_its_quickstart(tmp_path: Path, language: str) -> None:
    work = Work(tmp_path, SDKS[language].folder)
    quickstart(work, PACKAGES[language])
    assert (work.project / PACKAGES[language].workflow).read_text().startswith("name: ")
