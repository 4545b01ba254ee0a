package io.stepwire.session;

import io.stepwire.protocol.Limits;

/**
 * The rate at which steps really end: counts ends of steps, and the time for which there was a step
 * to run. Both fade, and their ratio is the rate. Credit and run-ahead follow it.
 *
 * <p>Time without a step does not count: an idle worker is not slow. While steps run and none ends,
 * the rate falls, so a change from short to long steps shows before the first long step ends.
 */
final class Pace {
  /** The weight of an observation falls to 1/e in this time. */
  private static final double FADE_MS = 100.0;

  private double ended;
  private double busyMs = Limits.PREFETCH_MS;
  private double atMs;
  private boolean isBusy;

  /** {@code expected}: the number of steps that may wait before any has ended. */
  Pace(double expected) {
    ended = expected;
  }

  /** There is a step to run again. */
  void resume(double nowMs) {
    if (!isBusy) {
      isBusy = true;
      atMs = nowMs;
    }
  }

  /** No step is left. */
  void pause(double nowMs) {
    fade(nowMs);
    isBusy = false;
  }

  void countEnd(double nowMs) {
    fade(nowMs);
    ended += 1.0;
  }

  /** The number of steps that are expected to end in this time. */
  double stepsIn(double ms, double nowMs) {
    fade(nowMs);
    return ended / busyMs * ms;
  }

  private void fade(double nowMs) {
    double passedMs = nowMs - atMs;
    if (!isBusy || passedMs <= 0) {
      return;
    }
    atMs = nowMs;
    double kept = Math.exp(-passedMs / FADE_MS);
    ended *= kept;
    busyMs = busyMs * kept + FADE_MS * (1 - kept);
  }
}
