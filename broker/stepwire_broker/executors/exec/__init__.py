"""The executor `exec`: any executable runs a step."""

from .commands import BadCommand, Commands
from .executor import KEY, Exec

__all__ = ["KEY", "BadCommand", "Commands", "Exec"]
