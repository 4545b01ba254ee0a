package io.stepwire.session;

import java.util.ArrayList;
import java.util.List;

/**
 * The credit that a broker may still use: what the worker has named to it, and has not taken back
 * with certainty. An entry [n, free] for each hello or heartbeat that the broker may not have read;
 * messages without such an n count for the latest entry.
 *
 * <p>A worker takes credit back by naming less. The broker may send by the earlier number until it
 * has read the later one, and only its ack of that heartbeat proves that. Until then, no other
 * broker is offered the same places.
 */
final class Promises {
  private static final int ENTRIES_MAX = 128; // unacknowledged messages that are told apart

  private final List<long[]> entries = new ArrayList<>();

  /** The number of steps that the broker may still send. */
  long promised() {
    long most = 0;
    for (long[] entry : entries) {
      most = Math.max(most, entry[1]);
    }
    return most;
  }

  /** A hello or heartbeat with this number names this credit. */
  void announce(long n, int free) {
    entries.add(new long[] {n, free});
    if (entries.size() > ENTRIES_MAX) {
      long oldestFree = entries.remove(0)[1];
      entries.get(0)[1] = Math.max(entries.get(0)[1], oldestFree);
    }
  }

  /** Another message names this credit. */
  void name(int free) {
    if (entries.isEmpty()) {
      entries.add(new long[] {0, free});
      return;
    }
    long[] latest = entries.get(entries.size() - 1);
    latest[1] = Math.max(latest[1], free);
  }

  /** The broker has sent this number of steps. */
  void use(int steps) {
    for (long[] entry : entries) {
      entry[1] = Math.max(0, entry[1] - steps);
    }
  }

  /**
   * The broker has read the hello or heartbeat n, and with it everything before. True if fewer are
   * promised.
   */
  boolean acknowledge(long n) {
    long before = promised();
    entries.removeIf(entry -> entry[0] < n);
    return promised() < before;
  }
}
