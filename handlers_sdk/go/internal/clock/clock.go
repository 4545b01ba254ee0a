// Package clock measures leases and timeouts: milliseconds of a clock that also counts sleep, where the system has one.
// After an hour of sleep, a laptop's lease is over.
package clock
