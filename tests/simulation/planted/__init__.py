"""Planted bugs: each is a line of the shipped code done wrong, in this process, for as long as a `with` lasts.

A check that finds nothing proves nothing, so every planted bug must be found by a seed. Bugs are planted from outside
and by name: no shipped line knows of them.
"""

from .hunt import BUGS, Hunt, hunt, hunt_all_again, report
from .plant import Bug, planted

__all__ = ["BUGS", "Bug", "Hunt", "hunt", "hunt_all_again", "planted", "report"]
