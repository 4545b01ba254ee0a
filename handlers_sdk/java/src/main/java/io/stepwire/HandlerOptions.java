package io.stepwire;

import java.time.Duration;

/**
 * The settings of one handler. Each method returns changed settings: {@code
 * HandlerOptions.standard().concurrency(2)}.
 */
public final class HandlerOptions {
  private static final HandlerOptions STANDARD = new HandlerOptions(0, 0, false, false, null);

  final int concurrency;
  final long timeoutMs;
  final boolean isShadowSafe;
  final boolean isInterruptible;
  final String version;

  private HandlerOptions(
      int concurrency,
      long timeoutMs,
      boolean isShadowSafe,
      boolean isInterruptible,
      String version) {
    this.concurrency = concurrency;
    this.timeoutMs = timeoutMs;
    this.isShadowSafe = isShadowSafe;
    this.isInterruptible = isInterruptible;
    this.version = version;
  }

  /** As many runs at a time as the worker has slots, and the step's own timeout. */
  public static HandlerOptions standard() {
    return STANDARD;
  }

  /** The maximum number of runs of this handler at a time. */
  public HandlerOptions concurrency(int runs) {
    if (runs < 1) {
      throw new ConfigurationError("concurrency is " + runs + ": it needs to be at least 1");
    }
    return new HandlerOptions(runs, timeoutMs, isShadowSafe, isInterruptible, version);
  }

  /** Shortens the step's timeout. */
  public HandlerOptions timeout(Duration timeout) {
    if (timeout.toMillis() < 1) {
      throw new ConfigurationError("timeout is " + timeout + ": it needs at least 1 ms");
    }
    return new HandlerOptions(
        concurrency, timeout.toMillis(), isShadowSafe, isInterruptible, version);
  }

  /** The handler may receive shadow steps: it has no effect then ({@link Context#isShadow}). */
  public HandlerOptions shadowSafe() {
    return new HandlerOptions(concurrency, timeoutMs, true, isInterruptible, version);
  }

  /**
   * A run that is asked to stop is also interrupted ({@link Thread#interrupt}). Without this, the
   * handler only sees {@link Context#cancelled}: an interrupt closes the file channels and some
   * sockets that the handler is using.
   */
  public HandlerOptions interruptible() {
    return new HandlerOptions(concurrency, timeoutMs, isShadowSafe, true, version);
  }

  /** The version of the handler, which its results carry. */
  public HandlerOptions version(String handlerVersion) {
    return new HandlerOptions(
        concurrency, timeoutMs, isShadowSafe, isInterruptible, handlerVersion);
  }
}
