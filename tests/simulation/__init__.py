"""The shipped core, stages, codec, store code and SDK session in one process, under pretended time and drawn faults."""
