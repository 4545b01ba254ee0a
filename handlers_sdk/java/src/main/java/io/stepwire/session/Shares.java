package io.stepwire.session;

import java.util.List;

/**
 * Divides a capacity among brokers. Each has an equal share, rounded down. The remainder rotates,
 * so that every broker has its turn even if there are more brokers than capacity. An idle broker
 * keeps one place of its share, and lends the rest to the others.
 */
final class Shares {
  /** Places that an idle broker does not lend, so that its next step need not wait. */
  private static final int IDLE_KEEPS = 1;

  /** The load of one live broker, and whether it is idle. */
  record Claim(int load, boolean isIdle) {}

  private Shares() {}

  /**
   * The places of the broker at {@code index} that it does not use yet; negative if it uses more
   * than its places.
   */
  static int split(int capacity, List<Claim> claims, int index, long rotation) {
    int count = claims.size();
    Claim mine = claims.get(index);
    int places = share(capacity, count, index, rotation);
    int borrowers = 0;
    int rank = 0;
    int lent = 0;
    for (int i = 0; i < count; i++) {
      if (claims.get(i).isIdle) {
        lent += Math.max(0, share(capacity, count, i, rotation) - IDLE_KEEPS);
      } else {
        borrowers++;
        rank += i < index ? 1 : 0;
      }
    }
    if (mine.isIdle) {
      places = borrowers > 0 ? Math.min(places, IDLE_KEEPS) : places;
    } else {
      places += share(lent, borrowers, rank, rotation);
    }
    return places - mine.load;
  }

  private static int share(int capacity, int among, int index, long rotation) {
    int rest = capacity % among;
    return capacity / among + ((index + rotation) % among < rest ? 1 : 0);
  }
}
