package io.stepwire.session;

import io.stepwire.protocol.Item;
import io.stepwire.protocol.Limits;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Remembers deliveries that are over or were refused: this process must not start them, or not
 * start them again.
 *
 * <p>The number of tombstones may be limited because batch numbers increase within a session. When
 * a tombstone is forgotten, the floor of its session rises to its batch number, and unknown batches
 * up to the floor are refused as stale. A delivery that was disowned before its receipt has no
 * batch number, so its tombstone is kept for the full time.
 */
final class Tombstones {
  private static final int TOMBSTONES_MAX = 20_000;

  private record Received(double atMs, BrokerPeer peer, HeldBatch batch) {}

  private record Disowned(double atMs, BrokerPeer peer) {}

  private final Map<Item, Received> received = new LinkedHashMap<>();
  private final Map<Item, Disowned> disowned = new LinkedHashMap<>();

  boolean contains(Item item) {
    return received.containsKey(item) || (!disowned.isEmpty() && disowned.containsKey(item));
  }

  void add(Item item, BrokerPeer peer, HeldBatch batch, double nowMs) {
    received.put(item, new Received(nowMs, peer, batch));
    if (received.size() > TOMBSTONES_MAX) {
      forgetOldest();
    }
  }

  /** Makes sure that this delivery, which may still be under way, never starts here. */
  void disown(Item item, BrokerPeer peer, double nowMs) {
    if (!received.containsKey(item)) {
      disowned.put(item, new Disowned(nowMs, peer));
    }
  }

  /** Forgets tombstones that are older than TOMBSTONE_MS. */
  void sweep(double nowMs) {
    double before = nowMs - Limits.TOMBSTONE_MS;
    while (!received.isEmpty() && received.values().iterator().next().atMs < before) {
      forgetOldest();
    }
    while (!disowned.isEmpty() && disowned.values().iterator().next().atMs < before) {
      disowned.remove(disowned.keySet().iterator().next());
    }
  }

  /**
   * Forgets the tombstones of a broker whose database was replaced, because its ids now belong to
   * other steps.
   */
  void forgetBroker(BrokerPeer peer) {
    received.values().removeIf(entry -> entry.peer == peer);
    disowned.values().removeIf(entry -> entry.peer == peer);
  }

  private void forgetOldest() {
    Received oldest = received.remove(received.keySet().iterator().next());
    BrokerPeer peer = oldest.peer;
    if (oldest.batch.session.equals(peer.session) && oldest.batch.number > peer.floor) {
      peer.floor = oldest.batch.number;
    }
  }
}
