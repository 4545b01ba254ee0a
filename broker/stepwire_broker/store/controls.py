"""The change of `controls` that is written with every change of workflows, so that one revision tells of all changes
that the brokers of a deployment keep in memory. As the removal of a row that does not exist, it leaves no row to read.
"""

from typing import Final

from stepwire_broker.core.model.commit_group import ControlChanged

CATALOGUE_CHANGED: Final = ControlChanged("workflows", "changed", None, 0)
