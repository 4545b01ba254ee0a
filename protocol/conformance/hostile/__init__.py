"""A hostile, lossy, played broker in simulated time, and the invariants that every session must keep."""
