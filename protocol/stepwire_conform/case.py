"""A case: one rule of the specification, with the function that checks a worker for it. `case` registers each one."""

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from .stage import Stage

Strength: TypeAlias = Literal["must", "should"]


class Level(enum.IntEnum):
    """The levels of the kit, in their order. A worker at a higher level passes those below it, except level 0."""

    ZERO = 0
    ONE = 1
    FULL = 2
    HARDENED = 3

    @property
    def word(self) -> str:
        return LEVEL_WORDS[self]


LEVEL_WORDS: Final = {Level.ZERO: "0", Level.ONE: "1", Level.FULL: "full", Level.HARDENED: "hardened"}
LEVEL_OF_WORD: Final = {word: level for level, word in LEVEL_WORDS.items()}


class CaseVerdict(enum.Enum):
    PASS = "pass"
    NON_STRICT = "non-strict"  # breaks a rule that is only recommended
    FAIL = "fail"
    MISSING = "missing"  # the worker does not offer what the case needs


class Case(NamedTuple):
    """One check. `section` is that of SPEC.md."""

    name: str
    level: Level
    rule: str
    section: str
    check: Callable[["Stage"], None]
    strength: Strength = "must"
    needs: tuple[str, ...] = ()  # conform.* handlers
    cause: str = ""  # the likely cause of a failure, if nothing more precise is seen
    fresh: bool = False  # needs a process of its own
    auto: bool = True  # the worker is started, and its session opened, before the check
    lasts_s: float = 1.0  # the usual duration: long cases begin first
    settings: Mapping[str, str] = MappingProxyType({})  # further variables of the environment
    brokers: int = 1
    transport: Literal["any", "ipc", "tcp"] = "any"
    curve: bool = False  # the played brokers have keys
    optional: bool = False  # of a feature that an SDK may leave out: then it is missing, and prevents no level


CASES: Final[dict[str, Case]] = {}


def case(
    name: str,
    level: Level,
    rule: str,
    section: str,
    *,
    strength: Strength = "must",
    needs: tuple[str, ...] | str = (),
    cause: str = "",
    fresh: bool = False,
    auto: bool = True,
    lasts_s: float = 1.0,
    settings: dict[str, str] | None = None,
    brokers: int = 1,
    transport: Literal["any", "ipc", "tcp"] = "any",
    curve: bool = False,
    optional: bool = False,
) -> Callable[[Callable[["Stage"], None]], Callable[["Stage"], None]]:
    """Register a check under this name. A check raises `Failed` or `Missing`; returning means that it passed."""

    def register(check: Callable[["Stage"], None]) -> Callable[["Stage"], None]:
        assert name not in CASES, f"two cases are called {name}"
        CASES[name] = Case(
            name,
            level,
            rule,
            section,
            check,
            strength,
            (needs,) if isinstance(needs, str) else needs,
            cause,
            fresh or not auto or brokers > 1 or bool(settings) or transport != "any" or curve,
            auto,
            lasts_s,
            settings or {},
            brokers,
            transport,
            curve,
            optional,
        )
        return check

    return register


class RuleBroken(AssertionError):
    """The worker broke a rule. `rule` and `section` replace those of the case if another rule was broken."""

    def __init__(self, what: str, *, rule: str = "", section: str = "", cause: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.rule = rule
        self.section = section
        self.cause = cause


class Missing(Exception):
    """The worker does not offer what the case needs."""
