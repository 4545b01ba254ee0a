package io.stepwire.session;

import io.stepwire.protocol.FromBroker.Endpoints;
import io.stepwire.protocol.Limits;
import io.stepwire.session.Action.Level;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The connected links, and the broker at each link if it is known: decides which to connect, when
 * to connect again, and which to disconnect.
 */
final class BrokerLinks {
  private static final double CHECK_EVERY_MS = 1_000;

  double checkAtMs = Session.NEVER;
  private final boolean hasCurve;
  private final Map<Link, String> brokerOf = new LinkedHashMap<>(); // null: not known yet
  private final Map<Link, Double> connectedMs = new LinkedHashMap<>();

  /** Of links learned from a list: when a list last named the broker. */
  private final Map<Link, Double> listedMs = new LinkedHashMap<>();

  /** The brokers that each broker listed in its open session. */
  private final Map<BrokerPeer, Set<String>> lists = new LinkedHashMap<>();

  /** The CURVE keys that each broker lists for itself, the current one first. */
  private final Map<String, List<String>> keys = new HashMap<>();

  /** Of links whose latest key is not the configured one. */
  private final Map<Link, String> keyOf = new HashMap<>();

  /** By broker: the listed address and key, if another one is connected. */
  private final Map<String, Action.Connect> moved = new HashMap<>();

  private final Set<String> ignored = new HashSet<>(); // brokers that need CURVE keys
  private final Brokers brokers;
  private final HeldDeliveries holdings;
  private final Outgoing out;

  BrokerLinks(Config config, Brokers brokers, HeldDeliveries holdings, Outgoing out) {
    this.hasCurve = config.curve;
    config.links.forEach(link -> brokerOf.put(link, null));
    this.brokers = brokers;
    this.holdings = holdings;
    this.out = out;
  }

  void start(double nowMs) {
    brokerOf.keySet().forEach(link -> connectedMs.put(link, nowMs));
    checkAtMs = nowMs + Limits.SERVER_KEY_RETRY_MS;
  }

  /**
   * Connects to the brokers that this broker lists. A configured endpoint may be the same broker
   * with another address.
   */
  void learn(BrokerPeer peer, List<Endpoints> listed, double nowMs) {
    Set<String> names = new HashSet<>();
    listed.forEach(entry -> names.add(entry.broker()));
    lists.put(peer, names);
    List<Endpoints> usable =
        listed.stream()
            .filter(entry -> !entry.steps().isEmpty() && !entry.results().isEmpty())
            .toList();
    Map<String, Link> known = new HashMap<>();
    brokerOf.forEach(
        (link, broker) -> {
          if (broker != null) {
            known.put(broker, link);
          }
        });
    for (Endpoints entry : usable) {
      Link link = new Link(entry.steps(), entry.results());
      if (brokerOf.containsKey(link) && brokerOf.get(link) == null) {
        brokerOf.put(link, entry.broker());
        known.put(entry.broker(), link);
      }
    }
    List<Link> unnamed = unnamed();
    if (!known.containsKey(peer.id) && unnamed.size() == 1) {
      brokerOf.put(unnamed.remove(0), peer.id);
    }
    for (Endpoints entry : usable) {
      Link link = new Link(entry.steps(), entry.results());
      if (brokers.contains(entry.broker())
          || known.containsKey(entry.broker())
          || !unnamed.isEmpty()) {
        continue;
      }
      if (entry.serverKey() != null && !hasCurve) {
        ignore(entry.broker());
        continue;
      }
      known.put(entry.broker(), link);
      brokerOf.put(link, entry.broker());
      connectedMs.put(link, nowMs);
      listedMs.put(link, nowMs);
      out.add(new Action.Connect(link, entry.serverKey()));
    }
    noteAddresses(usable);
    if (hasCurve) {
      List<String> own =
          usable.stream()
              .filter(entry -> entry.broker().equals(peer.id) && entry.serverKey() != null)
              .map(Endpoints::serverKey)
              .toList();
      followKey(peer.id, own, nowMs);
    }
  }

  /**
   * Notes the addresses of brokers that were learned from a list, if others are connected. The
   * first entry of each broker counts.
   */
  private void noteAddresses(List<Endpoints> listed) {
    Set<String> noted = new HashSet<>();
    for (Endpoints entry : listed) {
      Link connected = linkOf(entry.broker());
      if (!noted.add(entry.broker()) || connected == null || !listedMs.containsKey(connected)) {
        continue;
      }
      Link link = new Link(entry.steps(), entry.results());
      if (link.equals(connected) || (entry.serverKey() != null && !hasCurve)) {
        moved.remove(entry.broker());
      } else {
        moved.put(entry.broker(), new Action.Connect(link, entry.serverKey()));
      }
    }
  }

  /** Connects again with the broker's current key if it has changed. */
  private void followKey(String broker, List<String> listed, double nowMs) {
    if (listed.isEmpty()) {
      return;
    }
    List<String> before = keys.put(broker, listed);
    Link link = linkOf(broker);
    String current = listed.get(0);
    if (before != null
        && link != null
        && !before.get(0).equals(current)
        && !current.equals(keyOf.get(link))) {
      connectWith(link, current, nowMs);
      out.log(Level.INFO, "server_key_changed", "link", link, "broker", broker);
    }
  }

  private void connectWith(Link link, String key, double nowMs) {
    keyOf.put(link, key);
    connectedMs.put(link, nowMs);
    out.add(new Action.Disconnect(link));
    out.add(new Action.Connect(link, key));
  }

  /**
   * The key for the next attempt. A broker that has listed several keys may have changed its key
   * meanwhile.
   */
  private String nextKey(Link link, List<String> listed) {
    String used = keyOf.getOrDefault(link, listed.size() > 1 ? listed.get(0) : "");
    return listed.get((listed.indexOf(used) + 1) % listed.size());
  }

  private List<Link> unnamed() {
    List<Link> unnamed = new ArrayList<>();
    brokerOf.forEach(
        (link, broker) -> {
          if (broker == null) {
            unnamed.add(link);
          }
        });
    return unnamed;
  }

  /** The link to this broker; null if it is not known. */
  Link linkOf(String broker) {
    for (Map.Entry<Link, String> entry : brokerOf.entrySet()) {
      if (broker.equals(entry.getValue())) {
        return entry.getKey();
      }
    }
    return null;
  }

  /** The links to brokers that no session is open with. */
  List<Link> withoutSession() {
    Set<String> named = new HashSet<>(brokerOf.values());
    int strangers = 0;
    for (BrokerPeer peer : brokers) {
      strangers += peer.session != null && !named.contains(peer.id) ? 1 : 0;
    }
    List<Link> closed = new ArrayList<>();
    brokerOf.forEach(
        (link, broker) -> {
          BrokerPeer peer = broker == null ? null : brokers.get(broker);
          if (broker != null && (peer == null || peer.session == null)) {
            closed.add(link);
          }
        });
    List<Link> unnamed = unnamed();
    if (strangers < unnamed.size()) {
      closed.addAll(unnamed);
    }
    return closed;
  }

  /** Disconnects brokers that are no longer listed, and connects silent ones again. */
  void check(double nowMs) {
    disconnectUnlisted(nowMs);
    rebuildSilent(nowMs);
    checkAtMs = nowMs + CHECK_EVERY_MS;
  }

  /**
   * Disconnects brokers that were learned from a list, are absent from every list for long, and own
   * nothing.
   */
  private void disconnectUnlisted(double nowMs) {
    Set<String> listed = new HashSet<>();
    lists.forEach(
        (peer, names) -> {
          if (peer.session != null) {
            listed.addAll(names);
          }
        });
    for (Link link : List.copyOf(listedMs.keySet())) {
      String broker = brokerOf.get(link);
      BrokerPeer peer = brokers.get(broker);
      if (listed.contains(broker)) {
        listedMs.put(link, nowMs);
      } else if (nowMs - listedMs.get(link) >= Limits.UNLISTED_MS
          && (peer == null || isUnused(peer))) {
        listedMs.remove(link);
        brokerOf.remove(link);
        connectedMs.remove(link);
        keys.remove(broker);
        moved.remove(broker);
        keyOf.remove(link);
        if (peer != null) {
          lists.remove(peer);
          brokers.forget(peer);
        }
        out.add(new Action.Disconnect(link));
        out.log(Level.INFO, "link_removed", "link", link, "broker", broker);
      }
    }
  }

  private boolean isUnused(BrokerPeer peer) {
    return peer.session == null && holdings.ofBroker(peer).isEmpty();
  }

  /**
   * Connects silent links again. A refused or dead connection reports no error, and never recovers
   * by itself.
   */
  private void rebuildSilent(double nowMs) {
    Set<String> named = new HashSet<>(brokerOf.values());
    int unnamed = unnamed().size();
    double sinceMs = nowMs - Limits.SOCKET_REBUILD_MS;
    int strangers = 0;
    for (BrokerPeer peer : brokers) {
      boolean isAnswering = peer.session != null && peer.answeredMs > sinceMs;
      strangers += isAnswering && !named.contains(peer.id) ? 1 : 0;
    }
    for (Map.Entry<Link, String> entry : new ArrayList<>(brokerOf.entrySet())) {
      Link link = entry.getKey();
      String broker = entry.getValue();
      BrokerPeer peer = broker == null ? null : brokers.get(broker);
      if (broker == null && strangers >= unnamed) {
        continue;
      }
      double answeredMs = peer == null ? -Session.NEVER : peer.answeredMs;
      List<String> listed = broker == null ? List.of() : keys.getOrDefault(broker, List.of());
      double silentMs = listed.size() > 1 ? Limits.SERVER_KEY_RETRY_MS : Limits.SOCKET_REBUILD_MS;
      if (Math.max(answeredMs, connectedMs.get(link)) <= nowMs - silentMs) {
        Action.Connect to = broker == null ? null : moved.remove(broker);
        if (to != null && !brokerOf.containsKey(to.link())) {
          move(link, to, nowMs);
          continue;
        }
        if (listed.isEmpty()) {
          connectedMs.put(link, nowMs);
          out.add(new Action.Rebuild(link));
        } else {
          connectWith(link, nextKey(link, listed), nowMs);
        }
        out.log(Level.DEBUG, "link_rebuilt", "link", link, "broker", broker);
      }
    }
  }

  /** Connects a broker at the address that a list named last, instead of this one. */
  private void move(Link link, Action.Connect to, double nowMs) {
    String broker = brokerOf.remove(link);
    brokerOf.put(to.link(), broker);
    listedMs.put(to.link(), listedMs.remove(link));
    connectedMs.remove(link);
    connectedMs.put(to.link(), nowMs);
    keyOf.remove(link);
    if (to.serverKey() != null) {
      keyOf.put(to.link(), to.serverKey());
    }
    out.add(new Action.Disconnect(link));
    out.add(to);
    out.log(Level.INFO, "link_moved", "link", to.link(), "broker", broker);
  }

  /** Does not connect to a broker that requires CURVE keys. Logged once for each broker. */
  private void ignore(String broker) {
    if (ignored.add(broker)) {
      out.log(Level.WARNING, "broker_ignored", "broker", broker);
    }
  }
}
