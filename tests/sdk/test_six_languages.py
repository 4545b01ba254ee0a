"""The names, variables and limits that all SDKs share, compared in their sources: no other language is needed."""

import re
from pathlib import Path
from typing import Final

import pytest
from stepwire_protocol import limits

FOLDER: Final = Path(__file__).parents[2] / "handlers_sdk"
README: Final = (FOLDER / "README.md").read_text()
SOURCES: Final = {
    "python": ("python/stepwire", ".py"),
    "ruby": ("ruby/lib", ".rb"),
    "go": ("go", ".go"),
    "node": ("node/src", ".js"),
    "rust": ("rust/src", ".rs"),
    "java": ("java/src/main/java", ".java"),
}
OTHERS: Final = tuple(language for language in SOURCES if language != "python")
LIMITS: Final = {
    "ruby": "ruby/lib/stepwire/limits.rb",
    "go": "go/internal/codec/limits.go",
    "node": "node/src/protocol/limits.js",
    "rust": "rust/src/protocol/limits.rs",
    "java": "java/src/main/java/io/stepwire/protocol/Limits.java",
}
# Constants outside the files of limits: those of the table "One set of defaults".
DEFAULTS: Final = {
    "SLOTS_DEFAULT": 10,
    "SLOTS_MAX": 10_000,
    "NOTE_CHARS_MAX": 200,
    "PROGRESS_EVERY_MS": 200,
    "EXPEL_MS": 2_000,
    "DRAIN_MS": 25_000,
    "EVERY_MS": 300_000,
}
OTHER_NAMES: Final = {"DrainDefault": "DRAIN_MS", "reportEveryMS": "EVERY_MS"}  # in Go, one package has both
LACKING: Final = {
    "STEPWIRE_SECRETS_DIR": {"rust", "node", "ruby", "java"},
    "STEPWIRE_SEAL_KEYS_FILE": {"rust", "node", "ruby", "java"},
}  # variables of features that not every SDK has
AT_BUILD_OR_TEST: Final = {"STEPWIRE_VECTORS", "STEPWIRE_LIBZMQ_DIR"}
TABLE_COLUMNS: Final = ("python", "ruby", "go", "node", "rust", "java")

_CONSTANT: Final = re.compile(
    r"^\s*(?:export |pub(?:\(crate\))? |public |private |static |final |const |int |long |double )*"
    r"(?P<name>[A-Za-z]\w+)(?:: [\w\[\]; ]+)?\s*=\s*(?P<value>[^;#]+?)\s*(?://.*|#.*)?;?\s*(?://.*|#.*)?$",
    re.MULTILINE,
)


def text_of(language: str) -> str:
    folder, ending = SOURCES[language]
    paths = sorted((FOLDER / folder).rglob(f"*{ending}"))
    kept = [path for path in paths if not {"client", "node_modules", "target", ".build"} & set(path.parts)]
    return "\n".join(path.read_text() for path in kept if not path.name.endswith("_test.go"))


TEXTS: Final = {language: text_of(language) for language in SOURCES}


def constants(text: str) -> dict[str, float]:
    """Numeric constants by their names in upper snake case."""
    found = {}
    for match in _CONSTANT.finditer(text):
        name = OTHER_NAMES.get(match["name"]) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match["name"]).upper()
        if (value := number(match["value"])) is not None:
            found[name] = value
    return found


def number(text: str) -> float | None:
    text = re.sub(r"(?<=\d)_(?=\d)", "", text).replace("Number.MAX_SAFE_INTEGER", "2**53 - 1").replace("1L", "1")
    text = text.replace("time.Second", "1000").replace("1<<53 - 1", "(1<<53) - 1")  # << binds more tightly in Go
    if not re.fullmatch(r"[\d.()*<\- ]+", text):
        return None
    try:
        return float(eval(text, {"__builtins__": {}}))  # noqa: S307 - digits and operators only
    except (SyntaxError, TypeError):
        return None  # the first line of a longer expression


@pytest.mark.parametrize("language", OTHERS)
def test_the_limits_of_the_protocol_are_the_same_in_every_language(language: str) -> None:
    theirs = constants((FOLDER / LIMITS[language]).read_text())
    ours = {name: value for name, value in vars(limits).items() if isinstance(value, int | float)}
    assert len(theirs) >= 28, sorted(theirs)
    assert theirs == {name: ours.get(name) for name in theirs}


@pytest.mark.parametrize("language", SOURCES)
def test_the_defaults_are_the_same_in_every_language(language: str) -> None:
    theirs = constants(TEXTS[language])
    assert {name: theirs.get(name) for name in DEFAULTS} == DEFAULTS
    assert re.search(r"3_000(?:\.0)?, 10_000(?:\.0)?, 30_000(?:\.0)?, 60_000(?:\.0)?[])}]", TEXTS[language])


@pytest.mark.parametrize("language", SOURCES)
def test_every_sdk_reads_the_variables_of_the_page(language: str) -> None:
    table = README.partition("## One environment")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(STEPWIRE_\w+)`", table, re.MULTILINE))
    assert len(named) == 12
    read = set(re.findall(r"STEPWIRE_[A-Z_]*[A-Z]\b", TEXTS[language])) - AT_BUILD_OR_TEST
    lacking = {name for name, languages in LACKING.items() if language in languages}
    assert read & lacking == set()
    assert read >= named - lacking
    assert [name for name in read - named if f"{name}_" not in TEXTS[language]] == []  # without beginnings of names


@pytest.mark.parametrize("language", SOURCES)
def test_the_endpoints_of_the_page_are_the_defaults(language: str) -> None:
    usual = ("ipc://.stepwire/steps.sock", "ipc://.stepwire/results.sock")
    of_java = ("tcp://127.0.0.1:7411", "tcp://127.0.0.1:7412")
    for endpoint in of_java if language == "java" else usual:
        assert f'"{endpoint}"' in TEXTS[language].replace("'", '"')
        assert f"`{endpoint}`" in README


@pytest.mark.parametrize("language", SOURCES)
def test_the_names_of_the_page_exist(language: str) -> None:
    table = README.partition("## One set of names")[2].partition("\n\nWhat differs")[0]
    rows = [row.split(" | ") for row in table.splitlines() if row.startswith("| ")][1:]
    assert len(rows) == 20
    cells = [row[1 + TABLE_COLUMNS.index(language)] for row in rows]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert len(names) >= len(rows)
    missing = [name for name in names if not is_defined(language, re.split(r"[.:]+", name)[-1].rstrip("?"))]
    assert missing == []


def is_defined(language: str, name: str) -> bool:
    """Whether the sources define this name: not only mention it."""
    if language == "go" and name in ("Deadline", "Done"):
        return True  # of context.Context
    before = {
        "python": r"(?:def |class |self\.|        )",
        "ruby": r"(?:def (?:self\.)?|class |module |attr_reader .*:|, |\()",
        "go": r"(?:func (?:\([^)]*\) )?|\t)",
        "node": r"(?:static |get |class |this\.|^  |function |export function |export async function )",
        "rust": r"(?:pub fn |pub async fn |pub struct )",
        "java": r"(?:public (?:static |final |synchronized |<\w+> )*(?:[\w<>?, ]+ )?)",
    }[language]
    is_option = language == "ruby" and f"{name}: " in TEXTS[language]
    return is_option or re.search(rf"{before}{name}\b", TEXTS[language], re.MULTILINE) is not None
