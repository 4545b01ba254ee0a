"""The router decides where a step runs: on which executor and which workers.

The dispatcher, `stepwire why`, `stepwire route` and the refusal of a submission use the same `Router`, so a report
always matches the dispatch. `decide` chooses between local and distributed. A distributed step follows the first rule
that matches its path `<namespace>::<workflow>::<step>`. Without a match the step goes to the default executor.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

from msgspec import Struct
from stepwire_protocol import patterns

from stepwire_broker.core.definitions import fields
from stepwire_broker.core.definitions.settings import CanarySettings, ExecutionSettings, RuleSettings, ShadowSettings
from stepwire_broker.core.definitions.step_definition import StepDefinition
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.targets import BUS, LOCAL, Route, Selector, Target
from stepwire_broker.core.reading.document_problems import ProblemCollector
from stepwire_broker.core.reading.nearest import nearest
from stepwire_broker.errors import BrokerError

NO_EXECUTOR: Final = ""  # the key of the executor of a step that has none

Mode = Literal["local", "distributed"]


class Decided(StrEnum):
    LOCAL = "local"
    DISTRIBUTED = "distributed"
    NO_EXECUTOR = "no_executor"


def decide(
    *, force_local: bool, has_distributed: bool, has_labels: bool, mode: Mode, on_missing: Literal["error", "local"]
) -> Decided:
    """Choose local or distributed. A step that must be distributed and cannot be is an error, unless the settings say
    `on_missing: local`."""
    if force_local:
        return Decided.LOCAL
    if not has_labels and mode == "local":
        return Decided.LOCAL
    if has_distributed:
        return Decided.DISTRIBUTED
    return Decided.LOCAL if on_missing == "local" else Decided.NO_EXECUTOR


class Split(Struct, frozen=True):
    """A share of a rule's tasks, and their destination instead (canary) or in addition (shadow)."""

    below: int  # selects tasks whose part, out of PARTS, is below this number
    executor: str | None
    selector: Selector

    @property
    def percent(self) -> float:
        return self.below * 100 / PARTS


PARTS: Final = 10_000


class RoutingRule(Struct, frozen=True, eq=False):
    number: int  # its position in the list, from 1
    match: str
    origin: str  # config or runtime
    executor: str | None
    selector: Selector
    canary: Split | None
    shadow: Split | None
    seed: int  # for `part`

    def part(self, task_id: int) -> int:
        """Return this task's part, below PARTS. A task's part never changes, so all its steps go to the same side."""
        return crc32(b"%d" % task_id, self.seed) % PARTS


class Destination(Struct, frozen=True, eq=False):
    """The routing of one step of a workflow, as far as it is the same for every task."""

    decided: Decided
    rule: RoutingRule | None
    target: Target
    canary: Target | None = None
    shadow: Target | None = None
    missing: str | None = None  # the executor that is not configured


class StepRoute(Struct, frozen=True, eq=False):
    """The destination of one step of a workflow with its routes, made once so that each task only looks them up."""

    destination: Destination
    route: Route  # for a first attempt
    canary: Route | None  # the same for tasks of the canary
    canary_below: int  # of PARTS
    is_plain: bool  # neither canary nor shadow


class RulesRefused(BrokerError):
    """The rules cannot be used. The message names the rule and the reason."""


class Router:
    """The routing settings, and the resulting destination of each step. New settings make a new router."""

    def __init__(
        self,
        settings: ExecutionSettings,
        executors: Collection[str],
        *,
        bus_is_distributed: bool,
        runtime: Sequence[RuleSettings] = (),
    ) -> None:
        """`runtime`: rules that were set while a broker ran. A rule with the `match` of a configured rule replaces it;
        the others come first."""
        self.settings = settings
        self.bus_is_distributed = bus_is_distributed
        self.executors = frozenset(executors)
        self.default_executor = settings.default_executor
        self.has_distributed = any(e != LOCAL and (e != BUS or bus_is_distributed) for e in self.executors)
        self.mode: Mode = settings.default_execution_mode or ("distributed" if bus_is_distributed else "local")
        self.rules = _rules(settings.rules, runtime)
        self.has_asides = any(rule.canary is not None or rule.shadow is not None for rule in self.rules)
        self._patterns = [patterns.compile_pattern(rule.match) for rule in self.rules]
        self._targets: dict[tuple[str, Selector, Selector], Target] = {}
        self.splits_namespaces = False  # routes name the namespace of their steps
        self._step_routes: dict[int, list[StepRoute | None]] = {}  # by workflow
        self._refusals: dict[int, str | None] = {}

    def split_namespaces(self, is_split: bool) -> None:
        """Let each route name its namespace, or not. Ready steps must be queued again."""
        self.splits_namespaces = is_split
        self._step_routes.clear()

    def route_of(self, step: Step) -> Route:
        """Return the route by which the step is queued and dispatched."""
        task = step.task
        step_route = self.step_route(task.workflow, step.definition.index)
        route = step_route.route
        if step_route.canary is not None:
            assert step_route.destination.rule is not None
            if step_route.destination.rule.part(task.id) < step_route.canary_below:
                route = step_route.canary
        if step.attempt or step.lost_sessions or step.message_bytes:
            is_held_to_budget = step.attempt > 0 and step.retry is None
            route = route._replace(
                goes_alone=step.is_suspect, is_held_to_budget=is_held_to_budget, message_bytes=step.message_bytes
            )
        return route

    def target(self, step: Step) -> Target:
        return self.route_of(step).target

    def shadow(self, step: Step) -> Target | None:
        """Return the target of a copy of the step; None if no copy is made."""
        destination = self.destination(step.task.workflow, step.definition.index)
        if destination.shadow is None:
            return None
        assert destination.rule is not None
        assert destination.rule.shadow is not None
        return destination.shadow if destination.rule.part(step.task.id) < destination.rule.shadow.below else None

    def destination(self, workflow: Workflow, index: int) -> Destination:
        return self.step_route(workflow, index).destination

    def step_route(self, workflow: Workflow, index: int) -> StepRoute:
        step_routes = self._step_routes.get(workflow.id)
        if step_routes is None:
            step_routes = self._step_routes[workflow.id] = [None] * len(workflow.steps)
        step_route = step_routes[index]
        if step_route is None:
            step_route = step_routes[index] = self._make_step_route(workflow, workflow.steps[index])
        return step_route

    def _make_step_route(self, workflow: Workflow, definition: StepDefinition) -> StepRoute:
        path = path_of(workflow.namespace, workflow.name, definition.name)
        destination = self.route(path, definition.worker_selector)
        route = Route(
            destination.target,
            definition.handler_class,
            is_at_most_once=definition.delivery_mode == "at_most_once",
            namespace=workflow.namespace if self.splits_namespaces else None,
        )
        canary = None if destination.rule is None else destination.rule.canary
        return StepRoute(
            destination,
            route=route,
            canary=None if destination.canary is None else route._replace(target=destination.canary),
            canary_below=0 if canary is None else canary.below,
            is_plain=destination.canary is None and destination.shadow is None,
        )

    def route(self, path: str, selector: dict[str, str] | str | None) -> Destination:
        """Return the destination of a step path, given the worker_selector of its step or workflow."""
        labels = _selector(selector) if isinstance(selector, dict) else ()
        decided = decide(
            force_local=selector == LOCAL,
            has_distributed=self.has_distributed,
            has_labels=bool(labels),
            mode=self.mode,
            on_missing=self.settings.on_missing,
        )
        if decided is Decided.LOCAL:
            return Destination(decided, None, self._target(LOCAL))
        if decided is Decided.NO_EXECUTOR:
            return Destination(decided, None, self._target(NO_EXECUTOR), missing=self.default_executor)
        rule = self._first(path)
        executor = self.default_executor if rule is None or rule.executor is None else rule.executor
        if executor not in self.executors:
            return Destination(Decided.NO_EXECUTOR, rule, self._target(NO_EXECUTOR), missing=executor)
        if rule is None:
            return Destination(decided, None, self._target(executor, labels))
        labels = labels or rule.selector
        without: Selector = ()
        if rule.canary is not None and rule.canary.executor in (None, executor):
            own = dict(labels)
            if not set(rule.canary.selector) <= set(labels):
                # A step that requires release=now does not go to workers with release=next anyway.
                is_apart = any(own.get(key, value) != value for key, value in rule.canary.selector)
                without = () if is_apart else rule.canary.selector
        return Destination(
            decided,
            rule,
            self._target(executor, labels, without),
            self._aside(rule.canary, executor, labels),
            self._aside(rule.shadow, executor, labels),
        )

    def refusal(self, workflow: Workflow) -> str | None:
        """Return why no task of this workflow can be accepted (the executor of a step is not configured), or None."""
        if workflow.id not in self._refusals:
            self._refusals[workflow.id] = next(
                (
                    f"step {definition.name}: {missing_text(destination)}"
                    for definition in workflow.steps
                    if (destination := self.destination(workflow, definition.index)).decided is Decided.NO_EXECUTOR
                ),
                None,
            )
        return self._refusals[workflow.id]

    def _first(self, path: str) -> RoutingRule | None:
        for rule, pattern in zip(self.rules, self._patterns, strict=True):
            if pattern.matches(path):
                return rule
        return None

    def _aside(self, aside: Split | None, executor: str, labels: Selector) -> Target | None:
        """Return the target of a canary or shadow. Its labels are required in addition to the step's labels."""
        if aside is None:
            return None
        own = aside.executor or executor
        if own not in self.executors:
            return self._target(NO_EXECUTOR)
        return self._target(own, tuple(sorted({**dict(labels), **dict(aside.selector)}.items())))

    def _target(self, executor: str, selector: Selector = (), without: Selector = ()) -> Target:
        key = (executor, selector, without)
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = Target(*key)
        return target


def path_of(namespace: str, workflow: str, step: str) -> str:
    return patterns.SEPARATOR.join((namespace, workflow, step))


def missing_text(destination: Destination) -> str:
    if destination.rule is None:
        return "the step must run on a distributed executor and none is configured: the bus is inproc only"
    rule = destination.rule
    return f"executor `{destination.missing}`, which rule {rule.number} ({rule.match}) names, is not configured"


def reason_text(destination: Destination, selector: object) -> str:
    """Explain in one sentence why a step with this worker_selector goes to this destination."""
    if destination.missing is not None:
        return missing_text(destination)
    if destination.decided is Decided.LOCAL:
        cause = "its worker_selector is local" if selector == LOCAL else "the default_execution_mode is local"
        return f"the step runs inside the broker: {cause}"
    rule = destination.rule
    if rule is None:
        return f"no rule matches: the step goes to {target_text(destination.target)}"
    text = f"rule {rule.number} ({rule.match}) matches first: the step goes to {target_text(destination.target)}"
    if destination.canary is not None and rule.canary is not None:
        text += f", and for {rule.canary.percent:g} % of its tasks to {target_text(destination.canary)}"
    if destination.shadow is not None and rule.shadow is not None:
        share = "" if rule.shadow.percent == 100 else f" for {rule.shadow.percent:g} % of its tasks"
        text += f"; a copy goes to {target_text(destination.shadow)}{share}, and is compared"
    return text


def target_text(target: Target) -> str:
    labels = f"{_labels_text(' with ', target.selector)}{_labels_text(' without ', target.without)}"
    return f"executor {target.executor}{labels}"


def _labels_text(preposition: str, labels: Selector) -> str:
    return preposition + ", ".join(f"{key}={value}" for key, value in labels) if labels else ""


# -- rules ------------------------------------------------------------------------------------------------------------


def check(settings: ExecutionSettings, executors: Collection[str]) -> None:
    """Check the rules. Raises RulesRefused when a rule names an executor that is not configured, or cannot be read."""
    names = ", ".join(sorted(executors))
    if settings.default_executor not in executors:
        raise RulesRefused(
            f"execution.default_executor is {settings.default_executor}, which is not a configured executor: {names}"
            f"{_how_to_add(settings.default_executor)}"
        )
    for rule in _rules(settings.rules, ()):
        for executor in _named(rule):
            if executor not in executors:
                raise RulesRefused(
                    f"execution.rules[{rule.number - 1}] ({rule.match}): {executor} is not a configured executor: "
                    f"{names}{_how_to_add(executor)}"
                )


def _named(rule: RoutingRule) -> Iterable[str]:
    for where in (rule, rule.canary, rule.shadow):
        if where is not None and where.executor is not None:
            yield where.executor


def check_rule(written: RuleSettings, executors: Collection[str]) -> None:
    """Check a rule before it is set at run time. Raises RulesRefused."""
    rule = _read(written, 1, "runtime")
    for executor in _named(rule):
        if executor not in executors:
            names = ", ".join(sorted(executors))
            raise RulesRefused(f"{executor} is not a configured executor: {names}{_how_to_add(executor)}")


def _how_to_add(executor: str) -> str:
    """The settings that a built-in executor needs, for a message."""
    setting = _NEEDS.get(executor)
    return "" if setting is None else f"; {executor} needs {setting}"


_NEEDS: Final = {"exec": "executors.exec.commands", "local": "executors.local.modules"}


def _rules(configured: Sequence[RuleSettings], runtime: Sequence[RuleSettings]) -> list[RoutingRule]:
    own = {rule.match: rule for rule in runtime}
    written = [(rule, "runtime") for rule in runtime if all(rule.match != other.match for other in configured)]
    for rule in configured:
        changed = own.get(rule.match)
        written.append((rule, "config") if changed is None else (changed, "runtime"))
    return [_read(rule, number, origin) for number, (rule, origin) in enumerate(written, 1)]


PATTERN_CHARACTERS_MAX: Final = 512


def _read(written: RuleSettings, number: int, origin: str) -> RoutingRule:
    where = f"rule {number} ({written.match[:80]})"
    if not 1 <= len(written.match) <= PATTERN_CHARACTERS_MAX:
        raise RulesRefused(f"rule {number}: match has {len(written.match)} characters; 1 to 512 are allowed")
    if "" in written.match.split(patterns.SEPARATOR):
        raise RulesRefused(f"{where}: match has an empty segment; separate segments by ::, as in shop::**::charge")
    if any(patterns.ANY in segment != patterns.ANY for segment in written.match.split(patterns.SEPARATOR)):
        raise RulesRefused(f"{where}: ** must be a whole segment; inside a segment, * matches any characters")
    return RoutingRule(
        number,
        written.match,
        origin,
        written.executor,
        _labels(written.worker_selector, where),
        _aside(written.canary, f"{where}, canary"),
        _aside(written.shadow, f"{where}, shadow"),
        crc32(f"{written.match}\n".encode()),
    )


def _aside(written: CanarySettings | ShadowSettings | None, where: str) -> Split | None:
    if written is None:
        return None
    if written.executor is None and not written.worker_selector:
        raise RulesRefused(f"{where}: set an executor, a worker_selector, or both")
    return Split(round(written.percent * PARTS / 100), written.executor, _labels(written.worker_selector, where))


def _labels(written: dict[str, Any] | None, where: str) -> Selector:
    report = ProblemCollector(None)
    labels = fields.selector(written or {}, ("worker_selector",), report)
    if report.problems or not isinstance(labels, dict):
        raise RulesRefused(f"{where}: " + "; ".join(f"{p.path}: {p.message}" for p in report.problems))
    return _selector(labels)


def _selector(labels: dict[str, str]) -> Selector:
    return tuple(sorted(labels.items()))


def hidden(rules: Sequence[RoutingRule]) -> list[tuple[RoutingRule, RoutingRule]]:
    """Rules that never match, because an earlier rule matches every path that they match: (hidden, hiding) pairs."""
    compiled = [patterns.compile_pattern(rule.match) for rule in rules]
    pairs = []
    for later in range(1, len(rules)):
        for earlier in range(later):
            if patterns.covers(compiled[earlier], compiled[later]):
                pairs.append((rules[later], rules[earlier]))
                break
    return pairs


class NearMiss(NamedTuple):
    rule: RoutingRule
    why: str


def near_miss(rules: Sequence[RoutingRule], path: str) -> NearMiss | None:
    """Return the first rule that does not match this path but probably should."""
    for rule in rules:
        if patterns.matches(rule.match, path):
            continue
        segments = rule.match.split(patterns.SEPARATOR)
        if patterns.matches(rule.match.lower(), path.lower()):
            return NearMiss(rule, "the rule differs in upper and lower case")
        wider = patterns.SEPARATOR.join(patterns.ANY if segment == "*" else segment for segment in segments)
        if wider != rule.match and patterns.matches(wider, path):
            return NearMiss(rule, f"* matches exactly one segment; {wider} would match")
        if patterns.matches(f"**::{rule.match}::**", path):
            return NearMiss(rule, f"the path has more segments; **::{rule.match}::** would match")
        written = [i for i, segment in enumerate(segments) if segment not in ("*", patterns.ANY)]
        for i in written if len(written) > 1 else ():
            segment = segments[i]
            other = patterns.SEPARATOR.join([*segments[:i], "*", *segments[i + 1 :]])
            # A segment with similar spelling is a near miss; the name of another step is not.
            if patterns.matches(other, path) and (alike := nearest(segment, path.split("::"))):
                return NearMiss(rule, f"only the segment {segment} differs: the path has {alike}")
    return None
