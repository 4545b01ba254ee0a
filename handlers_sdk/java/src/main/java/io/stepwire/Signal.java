package io.stepwire;

import java.time.Duration;

/** A flag that the SDK sets once, and a handler reads or waits for. */
public final class Signal {
  private volatile boolean isSet;

  Signal() {}

  public boolean isSet() {
    return isSet;
  }

  /**
   * Blocks until the flag is set, at most for {@code timeout}. True if it is set. Use it in place
   * of {@code Thread.sleep}: a run that is asked to stop then ends at once.
   */
  public synchronized boolean await(Duration timeout) throws InterruptedException {
    long untilNs = System.nanoTime() + timeout.toNanos();
    while (!isSet) {
      long leftMs = (untilNs - System.nanoTime() + 999_999) / 1_000_000;
      if (leftMs <= 0) {
        return false;
      }
      wait(leftMs);
    }
    return true;
  }

  synchronized void set() {
    isSet = true;
    notifyAll();
  }
}
