package io.stepwire.session;

import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/** The known brokers by id, in the order in which the worker learned them. */
final class Brokers implements Iterable<BrokerPeer> {
  private final Map<String, BrokerPeer> peers = new LinkedHashMap<>();
  private final Map<String, Long> nextOf =
      new HashMap<>(); // of forgotten brokers: never used twice

  int size() {
    return peers.size();
  }

  @Override
  public Iterator<BrokerPeer> iterator() {
    return peers.values().iterator();
  }

  boolean contains(String broker) {
    return peers.containsKey(broker);
  }

  /** Null if the broker is unknown. */
  BrokerPeer get(String broker) {
    return peers.get(broker);
  }

  BrokerPeer getOrAdd(String broker, double nowMs) {
    BrokerPeer peer = peers.get(broker);
    if (peer == null) {
      Long next = nextOf.remove(broker);
      peer = new BrokerPeer(broker, nowMs, next == null ? 1 : next);
      peers.put(broker, peer);
    }
    return peer;
  }

  /** Forgets a broker that has no session and owns nothing here. */
  void forget(BrokerPeer peer) {
    peers.remove(peer.id);
    nextOf.put(peer.id, peer.next);
  }

  /** The member {@code next} of hello and heartbeat. */
  Map<String, Long> nextNumbers() {
    Map<String, Long> numbers = new LinkedHashMap<>();
    peers.values().forEach(peer -> numbers.put(peer.id, peer.next));
    return numbers;
  }

  /** The member {@code sessions} of hello and heartbeat. */
  Map<String, String> sessions() {
    Map<String, String> sessions = new LinkedHashMap<>();
    for (BrokerPeer peer : peers.values()) {
      if (peer.session != null) {
        sessions.put(peer.id, peer.session);
      }
    }
    return sessions;
  }
}
