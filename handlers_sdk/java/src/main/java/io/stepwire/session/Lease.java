package io.stepwire.session;

/**
 * The time until which steps of one broker may start. The session sets it; runners read it before
 * each start.
 */
public final class Lease {
  /** Milliseconds of the worker's own clock; 0 without a lease. */
  public volatile double untilMs;
}
