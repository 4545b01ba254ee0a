"""The projects that `stepwire new` creates: by language, the files, the commands, and where the SDK comes from."""

import json
import re
import shlex
from pathlib import Path
from string import Template
from typing import Final, NamedTuple

from .failure import usage

TEMPLATES: Final = Path(__file__).parent / "templates"
CLONE: Final = Path(__file__).resolve().parents[3]  # of the repository, if this package is an editable install


class ProjectLanguage(NamedTuple):
    """One language. `commands` build and test the project in its directory; `manifest` is a file of every SDK's root,
    or empty if the SDK is installed together with this program."""

    title: str
    manifest: str
    files: dict[str, str]  # the names in the new directory, each with its template
    about: dict[str, str]  # the rows of README's table of files
    needs: str
    commands: tuple[str, ...]
    worker: str  # the command of the Procfile
    ignored: tuple[str, ...]
    copied: tuple[str, ...] = ()  # files of the SDK, where they lie


COMMON: Final = {
    "workflow.yaml": "common/workflow.yaml.in",
    "Procfile": "common/Procfile.in",
    "stepwire.yaml": "common/stepwire.yaml.in",
    "README.md": "common/README.md.in",
    ".gitignore": "common/gitignore.in",
}

LANGUAGES: Final = {
    "python": ProjectLanguage(
        title="Python",
        manifest="",
        files={"worker.py": "python/worker.py.in", "test_worker.py": "python/test_worker.py.in"},
        about={"worker.py": "the handler", "test_worker.py": "its test, which needs no broker"},
        needs="Run the test, after `pip install pytest`:",
        commands=("python -m pytest",),
        worker="python worker.py",
        ignored=("__pycache__/",),
    ),
    "ruby": ProjectLanguage(
        title="Ruby",
        manifest="stepwire.gemspec",
        files={name: f"ruby/{name}.in" for name in ("worker.rb", "worker_test.rb", "Gemfile")},
        about={
            "worker.rb": "the handler",
            "worker_test.rb": "its test, which needs no broker",
            "Gemfile": "the gems; `ruby -rbundler/setup` uses them",
        },
        needs="Run the test. It needs Ruby 3.1 or newer and ffi-rzmq (Debian: `apt-get install ruby ruby-ffi-rzmq`):",
        commands=("ruby -rbundler/setup worker_test.rb",),
        worker="ruby -rbundler/setup worker.rb",
        ignored=(),
    ),
    "go": ProjectLanguage(
        title="Go",
        manifest="go.mod",
        files={name: f"go/{name}.in" for name in ("main.go", "main_test.go", "go.mod")},
        about={
            "main.go": "the handler",
            "main_test.go": "its test, which needs no broker",
            "go.mod": "the module, and where it finds the SDK",
        },
        needs="Build and test, with Go 1.19 or newer, a C compiler and libzmq\n"
        "(Debian: `apt-get install golang-go gcc pkg-config libzmq3-dev`):",
        commands=("go mod tidy", "go test ./..."),
        worker="go build -o worker . && exec ./worker",
        ignored=("/worker",),
    ),
    "node": ProjectLanguage(
        title="Node",
        manifest="package.json",
        files={
            **{name: f"node/{name}.in" for name in ("greet.js", "greet.test.js", "worker.js", "package.json")},
            ".npmrc": "node/npmrc.in",
        },
        about={
            "greet.js": "the handler",
            "greet.test.js": "its test, which needs no broker",
            "worker.js": "the program that offers the handler",
            "package.json": "the package, and where it finds the SDK",
        },
        needs="Install and test, with Node 18 or newer:",
        commands=("npm install", "npm test"),
        worker="node worker.js",
        ignored=("node_modules/",),
    ),
    "rust": ProjectLanguage(
        title="Rust",
        manifest="Cargo.toml",
        files={"src/main.rs": "rust/main.rs.in", "Cargo.toml": "rust/Cargo.toml.in"},
        about={
            "src/main.rs": "the handler, and its test, which needs no broker",
            "Cargo.toml": "the package, and where it finds the SDK",
        },
        needs="Build and test, with Rust 1.63 or newer and libzmq (Debian: `apt-get install libzmq3-dev pkg-config`):",
        commands=("cargo test",),
        worker="cargo build --quiet && exec target/debug/worker",
        ignored=("target/",),
        copied=("Cargo.lock",),  # newer versions of the dependencies may need a newer Rust than the SDK
    ),
    "java": ProjectLanguage(
        title="Java",
        manifest="pom.xml",
        files={
            "src/main/java/worker/Greet.java": "java/Greet.java.in",
            "src/test/java/worker/GreetTest.java": "java/GreetTest.java.in",
            "pom.xml": "java/pom.xml.in",
            "stepwire.yaml": "java/stepwire.yaml.in",
        },
        about={
            "src/main/java/worker/Greet.java": "the handler",
            "src/test/java/worker/GreetTest.java": "its test, which needs no broker",
            "pom.xml": "the project",
        },
        needs="Install the SDK in the local Maven repository, build and test, with JDK 17 or newer and Maven:",
        commands=("mvn -q -f $sdk_pom install -DskipTests -Dmaven.javadoc.skip", "mvn -q test"),
        worker="mvn -q process-classes && exec java -cp 'target/classes:target/lib/*' worker.Greet",
        ignored=("target/",),
    ),
}


def find_sdk(lang: str, given: Path | None, clone: Path = CLONE) -> Path | None:
    """The directory of the SDK: in the directory that the user names, otherwise in the clone that this program runs
    from. None for Python, whose SDK is always there. Without an SDK, the command fails."""
    language = LANGUAGES[lang]
    if not language.manifest:
        return None
    root = (given or clone).absolute()
    for directory in (root, root / "handlers_sdk" / lang):
        if (directory / language.manifest).is_file() and (directory / "capabilities.yaml").is_file():
            return directory
    if given is not None:
        usage(f"{given} has no SDK for {language.title}: use `handlers_sdk/{lang}` of a clone of Stepwire's repository")
    usage(
        f"the SDK for {language.title} is not published yet, and this installation has no clone with it",
        f"clone Stepwire's repository, and add --sdk CLONE/handlers_sdk/{lang}",
    )


def commands(lang: str, sdk: Path | None) -> list[str]:
    """The commands that build and test the project."""
    return [Template(command).substitute(_paths(sdk)) for command in LANGUAGES[lang].commands]


def files(lang: str, name: str, sdk: Path | None) -> dict[str, str]:
    """The text of each file of a project, by its path in the new directory."""
    language = LANGUAGES[lang]
    values = {
        **_paths(sdk),
        "name": name,
        "title": language.title,
        "files": "\n".join(f"| `{file}` | {text} |" for file, text in language.about.items()),
        "needs": language.needs,
        "commands": "\n".join(commands(lang, sdk)),
        "worker": language.worker,
        "ignored": "\n".join(language.ignored),
    }
    texts = {}
    for file, template in (language.files | COMMON | language.files).items():  # a language may replace a common file
        text = Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values)
        texts[file] = text.rstrip("\n") + "\n"
    if sdk is not None:
        texts |= {file: (sdk / file).read_text(encoding="utf-8") for file in language.copied}
    return texts


def _paths(sdk: Path | None) -> dict[str, str]:
    """The SDK's directory, as the manifests and the shell write it."""
    if sdk is None:
        return {}
    pom = sdk / "pom.xml"
    version = re.search(r"<version>([^<]+)</version>", pom.read_text(encoding="utf-8")) if pom.is_file() else None
    return {
        "sdk_text": json.dumps(str(sdk), ensure_ascii=False),  # a string of Ruby, Go and TOML as well
        "sdk_file": json.dumps(f"file:{sdk}", ensure_ascii=False),
        "sdk_pom": shlex.quote(str(pom)),
        "sdk_version": version[1] if version else "",
    }
