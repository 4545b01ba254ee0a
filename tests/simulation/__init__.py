"""The shipped core, stages, codec, store code and SDK session in one process, under simulated time and drawn faults."""
