"""Workers whose sessions are those of another SDK, or of Python in a process of its own.

Such a session is a *driver*, a small program of each SDK (protocol/conformance/DRIVER.md). Time, frames and the ends of
runs go into it, and its actions come back, so the faults, the checks and the rest of the world are the same as with
Python's session in this process.
"""

from .drivers import CannotPlay, DriverCommand, Drivers, command_of, driver_of, known_sessions
from .node import DrivenNode

__all__ = ["CannotPlay", "DrivenNode", "DriverCommand", "Drivers", "command_of", "driver_of", "known_sessions"]
