package io.stepwire.worker;

import io.stepwire.protocol.Item;
import io.stepwire.protocol.Result;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Passes outcomes and requests from other threads to the socket thread, and wakes it. Any thread
 * may add them; only the socket thread removes them. To wake a thread costs more than a short step,
 * so it is woken only if it sleeps.
 */
final class Mailbox {
  /** The end of a call. {@code result} is null if the step is given back. */
  record Outcome(Item item, Result result) {}

  private final Queue<Outcome> outcomes = new ConcurrentLinkedQueue<>();
  private final Queue<Runnable> requests = new ConcurrentLinkedQueue<>();
  private final AtomicLong added = new AtomicLong(); // outcomes, since the start
  private final Runnable wakeUp;
  private long removed;
  private volatile boolean isAsleep;
  private volatile long wakeAt = Long.MAX_VALUE; // wake up when so many outcomes were added

  /** {@code wakeUp} wakes the socket thread, also if it is about to sleep. */
  Mailbox(Runnable wakeUp) {
    this.wakeUp = wakeUp;
  }

  void putRequest(Runnable request) {
    requests.add(request);
    if (isAsleep) {
      isAsleep = false;
      wakeUp.run();
    }
  }

  void putOutcome(Item item, Result result) {
    outcomes.add(new Outcome(item, result));
    long number = added.incrementAndGet();
    if (isAsleep || number == wakeAt) {
      isAsleep = false;
      wakeUp.run();
    }
  }

  /** Null if there is none. */
  Outcome takeOutcome() {
    Outcome outcome = outcomes.poll();
    if (outcome != null) {
      removed++;
    }
    return outcome;
  }

  /** Null if there is none. */
  Runnable takeRequest() {
    return requests.poll();
  }

  /**
   * Called by the socket thread before it sleeps: from now on, additions wake it. False if there
   * are some now.
   */
  boolean maySleep() {
    isAsleep = true;
    if (!outcomes.isEmpty() || !requests.isEmpty()) {
      isAsleep = false;
    }
    return isAsleep;
  }

  /**
   * Called before a short sleep: only the outcome of the last of these runs wakes the thread. False
   * if so many have ended already.
   */
  boolean maySleepUntilEndOf(int runs) {
    wakeAt = removed + runs;
    return added.get() < removed + runs;
  }

  /** Called after a sleep: additions need not wake the thread. */
  void awake() {
    isAsleep = false;
    wakeAt = Long.MAX_VALUE;
  }
}
