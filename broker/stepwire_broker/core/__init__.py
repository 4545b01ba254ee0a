"""The pure part: `machine.handle(event, now)` decides; nothing here does I/O, reads a clock or draws a number."""
