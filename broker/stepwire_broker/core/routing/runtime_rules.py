"""Routing rules that operators set while a broker runs. Each rule is one row of `controls`, named by its `match`."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from stepwire_broker.core.definitions.settings import RuleSettings
from stepwire_broker.core.definitions.stored_rows import StoredControl
from stepwire_broker.core.model.commit_group import ControlChanged

KIND: Final = "rule"  # in `controls`

_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.Decoder(RuleSettings).decode


class PlacedRule(NamedTuple):
    """A rule and its position. The rule with the highest position applies first, so a new rule comes before all."""

    rule: RuleSettings
    position: int

    @property
    def row(self) -> ControlChanged:
        return ControlChanged(KIND, self.rule.match, _encode(self.rule).decode(), self.position)


def stored_rules(controls: Iterable[StoredControl]) -> tuple[PlacedRule, ...]:
    """Return the stored rules in the order in which they apply."""
    placed = [PlacedRule(_decode(each.value), each.position) for each in controls if each.kind == KIND]
    return tuple(sorted(placed, key=lambda each: (-each.position, each.rule.match)))


def removal_of(match: str) -> ControlChanged:
    return ControlChanged(KIND, match, None, 0)
