"""The packages of the SDKs: how each is built, what it contains, and how a project installs it from a local file."""

import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .claims import FILE, read

TOOL_BOUND_S: Final = 420.0
SHOWN_MAX: Final = 4_000
TEXTS: Final = frozenset({"README.md", "CHANGELOG.md", "LICENSE"})


class WrongPackage(Exception):
    """A package cannot be built or installed, or does not contain what it should."""


class Work:
    """The folders of one run: a copy of the committed source, and the empty project."""

    def __init__(self, scratch: Path, folder: Path) -> None:
        self.folder = folder
        self.scratch = scratch
        self.source = scratch / "source"
        self.project = scratch / "shop"
        self.project.mkdir()
        self.version = read(folder / FILE).version
        self.environ: dict[str, str] = {}  # in addition to that of this process

    def copy_source(self) -> None:
        for name in self.tracked():
            (self.source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.folder / name, self.source / name)

    def tracked(self, *parts: str) -> set[str]:
        """The files that git has, and new ones that it does not ignore, that begin with one of `parts`."""
        words = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
        listed = subprocess.run(words, cwd=self.folder, check=True, capture_output=True, text=True).stdout.splitlines()
        return {name for name in listed if (self.folder / name).is_file() and (not parts or name.startswith(parts))}

    def run(self, *words: str | Path, directory: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
        """Run a tool that must succeed."""
        command = [str(word) for word in words]
        try:
            done = subprocess.run(
                command,
                cwd=directory or self.project,
                env=os.environ | self.environ | dict(environ or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=TOOL_BOUND_S,
            )
        except FileNotFoundError:
            raise WrongPackage(f"{command[0]} is not installed: run sh check.sh setup in {self.folder}") from None
        except subprocess.TimeoutExpired:
            raise WrongPackage(f"{' '.join(command)} did not end within {TOOL_BOUND_S:g} s") from None
        if done.returncode != 0:
            raise WrongPackage(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-SHOWN_MAX:]}")
        return done.stdout


class Package(NamedTuple):
    """How to make, check and use the package of one SDK."""

    sources: tuple[str, ...]  # files of the README's quickstart
    workflow: str
    build: Callable[[Work], list[Path]]
    check: Callable[[Work, Sequence[Path]], None]
    install: Callable[[Work, Sequence[Path]], None]
    command: Callable[[Work], tuple[str, ...]]
    worker: Callable[[Work], tuple[Path, ...]]  # what an installed worker consists of


def compare(file: Path, found: Iterable[str], expected: set[str]) -> None:
    """Refuse a package that lacks a file, or has one too many."""
    found = {name for name in found if not name.endswith("/")}
    if found != expected:
        lines = [f"  lacks {name}" for name in sorted(expected - found)]
        lines += [f"  has, and should not: {name}" for name in sorted(found - expected)]
        raise WrongPackage("\n".join([f"{file.name} does not have the expected files:", *lines]))


def _without(prefix: str, names: Iterable[str]) -> set[str]:
    wrong = [name for name in names if not name.startswith(prefix)]
    if wrong:
        raise WrongPackage(f"{wrong[0]} is not below {prefix}")
    return {name.removeprefix(prefix) for name in names}


# -- Ruby -------------------------------------------------------------------------------------------------------------


def _build_gem(work: Work) -> list[Path]:
    gem = work.scratch / f"stepwire-{work.version}.gem"
    work.run("gem", "build", "stepwire.gemspec", "--output", gem, directory=work.source)
    return [gem]


def _check_gem(work: Work, files: Sequence[Path]) -> None:
    with tarfile.open(files[0]) as gem:
        data = gem.extractfile("data.tar.gz")
        assert data is not None
        with tarfile.open(fileobj=data) as inner:
            compare(files[0], inner.getnames(), work.tracked("lib/", "exe/") | TEXTS | {FILE})


def _install_gem(work: Work, files: Sequence[Path]) -> None:
    home = work.scratch / "home"
    home.mkdir()
    work.environ |= {"HOME": str(home)}  # ffi-rzmq is that of the system
    work.run("gem", "install", "--local", "--user-install", "--no-document", files[0])


# -- Node -------------------------------------------------------------------------------------------------------------


def _build_tarball(work: Work) -> list[Path]:
    work.run("npm", "pack", "--pack-destination", work.scratch, directory=work.source)
    return [work.scratch / f"stepwire-{work.version}.tgz"]


def _check_tarball(work: Work, files: Sequence[Path]) -> None:
    expected = work.tracked("src/") | TEXTS | {FILE, "package.json", "bin/conform.js", "bin/driver.js"}
    with tarfile.open(files[0]) as tarball:
        compare(files[0], _without("package/", tarball.getnames()), expected)


def _install_tarball(work: Work, files: Sequence[Path]) -> None:
    (work.project / "package.json").write_text(json.dumps({"name": "shop", "type": "module", "private": True}))
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")
    work.run("npm", "install", *quiet, files[0])


# -- Rust -------------------------------------------------------------------------------------------------------------

CARGO_TOML: Final = """[package]
name = "shop"
version = "0.1.0"
edition = "2021"

[dependencies]
serde = { version = "1", features = ["derive"] }
serde_json = "1"
stepwire = "%s"
tokio = { version = "1", features = ["time"] }
"""


def _build_crate(work: Work) -> list[Path]:
    target = work.scratch / "target"
    # The quickstart compiles what is in the package, so cargo does not do it as well.
    words = ("cargo", "package", "--quiet", "--no-verify", "--allow-dirty", "--target-dir", target)
    work.run(*words, directory=work.source)
    return [target / f"package/stepwire-{work.version}.crate"]


def _check_crate(work: Work, files: Sequence[Path]) -> None:
    expected = work.tracked("src/") | TEXTS | {FILE, "build.rs", "Cargo.toml", "Cargo.toml.orig", "Cargo.lock"}
    with tarfile.open(files[0]) as crate:
        compare(files[0], _without(f"stepwire-{work.version}/", crate.getnames()), expected)


def _install_crate(work: Work, files: Sequence[Path]) -> None:
    with tarfile.open(files[0]) as crate:
        crate.extractall(work.scratch / "crates", filter="data")
    unpacked = work.scratch / f"crates/stepwire-{work.version}"
    (work.project / "Cargo.toml").write_text(CARGO_TOML % work.version)
    (work.project / ".cargo").mkdir()
    (work.project / ".cargo/config.toml").write_text(f'[patch.crates-io]\nstepwire = {{ path = "{unpacked}" }}\n')
    # Compiled dependencies are kept for the next run, in a folder that git ignores.
    cache = work.folder / "target/quickstart"
    work.run("cargo", "build", "--quiet", "--release", "--target-dir", cache)
    shutil.copy(cache / "release/shop", work.project / "shop")


# -- Java -------------------------------------------------------------------------------------------------------------

REPOSITORIES: Final = """<{kind}ies>
    <{kind}y><id>released</id><url>{released}</url></{kind}y>
    <{kind}y><id>cached</id><url>{cached}</url></{kind}y>
  </{kind}ies>
"""
_JAVA: Final = "src/main/java/"
_MAVEN: Final = ("mvn", "-B", "-ntp", "-q", "-Dstyle.color=never")


def _build_jars(work: Work) -> list[Path]:
    work.run(*_MAVEN, "package", "-Dmaven.test.skip", directory=work.source)
    stem = f"stepwire-{work.version}"
    jars = [work.source / f"target/{stem}{kind}.jar" for kind in ("", "-sources", "-javadoc")]
    pom = work.scratch / f"{stem}.pom"
    shutil.copy(work.source / "pom.xml", pom)
    return [*jars, pom]


def _check_jars(work: Work, files: Sequence[Path]) -> None:
    jar, sources, javadoc, _ = files
    java = {name.removeprefix(_JAVA) for name in work.tracked(_JAVA)}
    always = {"META-INF/MANIFEST.MF", "META-INF/LICENSE"}
    maven = {f"META-INF/maven/io.stepwire/stepwire/{name}" for name in ("pom.xml", "pom.properties")}
    with zipfile.ZipFile(jar) as one:
        compiled = {re.sub(r"(\$\w+)*\.class$", ".java", name) for name in one.namelist()}
    compare(jar, compiled, java | always | maven)
    with zipfile.ZipFile(sources) as one:
        compare(sources, one.namelist(), java | always | maven)
    with zipfile.ZipFile(javadoc) as one:
        pages = one.namelist()
    for page in ("index.html", "io/stepwire/Worker.html"):
        if not any(name.endswith(page) for name in pages):  # below a folder that is named like the module
            raise WrongPackage(f"{javadoc.name} lacks {page}")


def _install_jars(work: Work, files: Sequence[Path]) -> None:
    """Put the files where a registry has them, and build the project with an empty local repository."""
    released = work.scratch / "registry"
    folder = released / f"io/stepwire/stepwire/{work.version}"
    folder.mkdir(parents=True)
    for file in files:
        shutil.copy(file, folder)
    cached = Path.home() / ".m2/repository"  # so that plugins are not fetched again
    urls = {"released": released.as_uri(), "cached": cached.as_uri()}
    pom = work.project / "pom.xml"
    kinds = ("repositor", "pluginRepositor")
    added = "".join(REPOSITORIES.format(kind=kind, **urls) for kind in kinds)
    pom.write_text(pom.read_text().replace("<build>", f"{added}  <build>", 1))
    work.run(*_MAVEN, f"-Dmaven.repo.local={work.scratch / 'm2'}", "package", "-Dmaven.test.skip")


# -- Go ---------------------------------------------------------------------------------------------------------------

MODULE: Final = "github.com/stepwire/stepwire/handlers_sdk/go"


def _build_module(work: Work) -> list[Path]:
    """The zip that a proxy makes of the tag: every committed file of the folder."""
    file = work.scratch / f"v{work.version}.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as module:
        for name in sorted(work.tracked()):
            module.write(work.source / name, f"{MODULE}@v{work.version}/{name}")
    return [file]


def _check_module(work: Work, files: Sequence[Path]) -> None:
    with zipfile.ZipFile(files[0]) as module:
        names = _without(f"{MODULE}@v{work.version}/", module.namelist())
    missing = ({"go.mod", "go.sum", FILE} | TEXTS) - names
    built = {name for name in names if name.startswith((".build/", "vendor/")) or name.endswith((".exe", ".test"))}
    if missing or built:
        raise WrongPackage(f"{files[0].name} lacks {sorted(missing)}, and has {sorted(built)}, which it should not")


def _install_module(work: Work, files: Sequence[Path]) -> None:
    """Serve the zip as a module proxy does, from files, and take it by its version."""
    version = f"v{work.version}"
    proxy = work.scratch / "proxy" / MODULE / "@v"
    proxy.mkdir(parents=True)
    shutil.copy(files[0], proxy / f"{version}.zip")
    shutil.copy(work.source / "go.mod", proxy / f"{version}.mod")
    (proxy / "list").write_text(f"{version}\n")
    (proxy / f"{version}.info").write_text(json.dumps({"Version": version}))
    cache, further, flags = work.run("go", "env", "GOMODCACHE", "GOPROXY", "GOFLAGS").split("\n")[:3]
    environ = {
        "GOPROXY": f"{(work.scratch / 'proxy').as_uri()},{Path(cache, 'cache/download').as_uri()},{further}",
        "GOMODCACHE": str(work.scratch / "modules"),
        "GOFLAGS": f"{flags} -modcacherw".strip(),  # so that the scratch folder can be removed
        "GONOSUMDB": MODULE,  # nothing is published under this version yet
        "GOWORK": "off",
    }
    work.run("go", "mod", "init", "example.com/shop", environ=environ)
    work.run("go", "mod", "edit", f"-require={MODULE}@{version}", environ=environ)
    work.run("go", "mod", "tidy", environ=environ)
    work.run("go", "build", "-o", "shop", ".", environ=environ)


# -- all --------------------------------------------------------------------------------------------------------------

PACKAGES: Final[dict[str, Package]] = {
    "go": Package(
        ("main.go",),
        "workflow.yaml",
        _build_module,
        _check_module,
        _install_module,
        lambda work: (str(work.project / "shop"),),
        lambda work: (work.project / "shop",),
    ),
    "java": Package(
        ("pom.xml", "src/main/java/shop/Ship.java"),
        "ship.yaml",
        _build_jars,
        _check_jars,
        _install_jars,
        lambda work: ("java", "-cp", f"{work.project}/target/classes:{work.project}/target/lib/*", "shop.Ship"),
        lambda work: (work.project / "target/classes", work.project / "target/lib"),
    ),
    "node": Package(
        ("worker.js",),
        "orders.yaml",
        _build_tarball,
        _check_tarball,
        _install_tarball,
        lambda work: ("node", str(work.project / "worker.js")),
        lambda work: (work.project / "node_modules", work.project / "worker.js"),
    ),
    "ruby": Package(
        ("worker.rb",),
        "ship.yaml",
        _build_gem,
        _check_gem,
        _install_gem,
        lambda work: ("ruby", str(work.project / "worker.rb")),
        lambda work: (work.scratch / "home/.local/share/gem", work.project / "worker.rb"),
    ),
    "rust": Package(
        ("src/main.rs",),
        "ship.yaml",
        _build_crate,
        _check_crate,
        _install_crate,
        lambda work: (str(work.project / "shop"),),
        lambda work: (work.project / "shop",),
    ),
}
