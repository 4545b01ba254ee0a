"""`stepwire new --lang`: the files of a project in each language. tests/languages builds and runs them."""

import os
import shutil
import tomllib
from pathlib import Path

import pytest
from stepwire_broker.cli import project_languages
from stepwire_broker.cli.dev import read_procfile
from stepwire_broker.cli.failure import Failure
from stepwire_broker.cli.project_languages import LANGUAGES

from tests.system.harness import REPOSITORY

from .a_place import Place

OK, _, USAGE = range(3)
OTHERS = [lang for lang in LANGUAGES if lang != "python"]
KEYWORDS = ("fn", "class", "func", "end", "import", "stepwire", "test", "internal")


@pytest.mark.parametrize("lang", OTHERS)
def test_a_new_project_has_a_worker_its_test_and_the_path_of_the_sdk(empty: Place, lang: str) -> None:
    done = empty.stepwire("new", "my-shop", "--lang", lang, "--json")
    directory = empty.directory / "my-shop"
    written = {str(path.relative_to(empty.directory)) for path in directory.rglob("*") if path.is_file()}
    assert (done.code, set(done.json["files"])) == (OK, written)
    assert {"workflow.yaml", "Procfile", "stepwire.yaml", "README.md", ".gitignore"} <= {
        path.name for path in directory.iterdir()
    }
    texts = {path.name: path.read_text() for path in directory.rglob("*") if path.is_file()}
    sdk = str(REPOSITORY / "handlers_sdk" / lang)
    assert any(sdk in text for text in texts.values()), "the project names the SDK"
    assert all(text.endswith("\n") and not text.endswith("\n\n") for text in texts.values())
    assert any('"my_shop.greet"' in text or "'my_shop.greet'" in text for text in texts.values())
    assert [entry.name for entry in read_procfile(texts["Procfile"], "Procfile")] == ["worker"]
    for file in LANGUAGES[lang].about:
        assert (directory / file).is_file(), f"README lists {file}"
    here = Place(directory, empty.environ)
    assert here.stepwire("config", "validate").code == OK
    assert here.stepwire("workflow", "validate", "workflow.yaml").code == OK


@pytest.mark.parametrize("lang", OTHERS)
def test_new_prints_the_commands_that_build_test_and_run_the_project(empty: Place, lang: str) -> None:
    done = empty.stepwire("new", "shop", "--lang", lang)
    commands = project_languages.commands(lang, REPOSITORY / "handlers_sdk" / lang)
    assert done.err == f"next: cd shop && {' && '.join(commands)} && stepwire dev\n"
    readme = (empty.directory / "shop" / "README.md").read_text()
    assert "\n".join(["```", *commands, "```"]) in readme


def test_no_name_of_a_project_is_a_word_or_a_package_of_its_language(empty: Place) -> None:
    for name in KEYWORDS:
        for lang, package in (("rust", "Cargo.toml"), ("node", "package.json"), ("go", "go.mod"), ("java", "pom.xml")):
            assert f"{name}_worker" in project_languages.files(lang, name, REPOSITORY / "handlers_sdk" / lang)[package]
    rust = project_languages.files("rust", "fn", REPOSITORY / "handlers_sdk" / "rust")
    assert tomllib.loads(rust["Cargo.toml"])["package"]["name"] == "fn_worker"


def test_the_sdk_may_be_in_a_directory_that_the_user_names(empty: Place) -> None:
    sdk = empty.directory / 'an "odd" place'
    shutil.copytree(REPOSITORY / "handlers_sdk" / "rust", sdk, ignore=shutil.ignore_patterns("target"))
    assert empty.stepwire("new", "shop", "--lang", "rust", "--sdk", sdk.name).code == OK
    manifest = tomllib.loads((empty.directory / "shop" / "Cargo.toml").read_text())
    assert (empty.directory / "shop" / "Cargo.lock").read_text() == (sdk / "Cargo.lock").read_text()
    assert manifest["dependencies"]["stepwire"] == {"path": str(sdk)}
    assert empty.stepwire("new", "of-a-clone", "--lang", "go", "--sdk", str(REPOSITORY)).code == OK
    assert str(REPOSITORY / "handlers_sdk/go") in (empty.directory / "of-a-clone" / "go.mod").read_text()


def test_a_directory_without_the_sdk_is_refused_in_one_sentence(empty: Place) -> None:
    done = empty.stepwire("new", "shop", "--lang", "ruby", "--sdk", str(REPOSITORY / "handlers_sdk" / "go"))
    assert done.code == USAGE
    assert "has no SDK for Ruby: use `handlers_sdk/ruby` of a clone" in done.err
    assert not (empty.directory / "shop").exists()


def test_an_installed_stepwire_names_the_option_for_the_sdk(empty: Place) -> None:
    elsewhere = empty.directory / "installed"
    shutil.copytree(REPOSITORY / "broker" / "stepwire_broker", elsewhere / "stepwire_broker")
    path = os.pathsep.join((str(elsewhere), *filter(None, [empty.environ.get("PYTHONPATH")])))
    done = empty.stepwire("new", "shop", "--lang", "java", PYTHONPATH=path)
    assert done.code == USAGE
    assert done.err == (
        "stepwire: the SDK for Java is not published yet, and this installation has no clone with it\n"
        "  clone Stepwire's repository, and add --sdk CLONE/handlers_sdk/java\n"
    )
    assert empty.stepwire("new", "shop", "--lang", "python", PYTHONPATH=path).code == OK


def test_python_needs_no_directory_of_an_sdk(tmp_path: Path) -> None:
    assert project_languages.find_sdk("python", None, tmp_path) is None
    with pytest.raises(Failure):
        project_languages.find_sdk("go", None, tmp_path)
