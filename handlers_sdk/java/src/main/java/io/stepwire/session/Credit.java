package io.stepwire.session;

import io.stepwire.protocol.Limits;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The credit of each broker: how many steps the worker has room for, and how the room is divided.
 *
 * <p>A worker has its slots, and room for steps that wait: as many as it really finishes in
 * PREFETCH_MS. Short steps then never run out between two messages, and long steps stay at the
 * broker, where another worker can take them. A declared prefetch is the least room; a declared
 * prefetch of 0 means that no step waits here. If steps become longer, the room shrinks, and the
 * worker returns the steps that no longer fit.
 *
 * <p>Brokers do not know of each other, so the worker divides its capacity among them ({@link
 * Shares}). Each place is promised to one broker at a time: it is offered to another one only when
 * its former holder has acknowledged a smaller number ({@link Promises}).
 */
final class Credit {
  /** Above this, no credit: brokers that send no acks may send no steps. */
  private static final long OUTBOX_BYTES_MAX = 64L * 1024 * 1024;

  private static final double WAITING_MAX = 2_000; // steps for which the observed pace makes room
  private static final double WAITING_BYTES_MAX = 16.0 * 1024 * 1024; // the same in bytes
  private static final double RETURN_EVERY_MS = 20.0; // interval of the search for excess steps
  private static final int RETURN_FACTOR = 2; // the room may be used this often before a return

  /** The members {@code free} and {@code slots_free} of a message to one broker. */
  record Offered(int free, int slotsFree) {}

  /** The same members of a hello or heartbeat, by broker. */
  record OfferedToAll(Map<String, Integer> free, Map<String, Integer> slotsFree) {}

  /** Steps that no longer fit, and the brokers that may get them back. */
  record Excess(int steps, Set<BrokerPeer> peers) {}

  private record Place(int free, int slotsFree, boolean isHeldBack) {}

  double returnAtMs = Session.NEVER;
  boolean isQuiet; // set by the program: accept no new steps
  boolean isFull; // the runner accepts no steps at the moment
  boolean isDraining;
  private final int slots;
  private final int prefetch;
  private final double idleAfterMs;
  private final Brokers brokers;
  private final HeldDeliveries holdings;
  private final ResultsOutbox outbox;
  private int largest; // the largest capacity that was offered
  private double stepBytes; // of a recent step
  private long rotation;

  Credit(Config config, Brokers brokers, HeldDeliveries holdings, ResultsOutbox outbox) {
    this.slots = config.slots;
    this.prefetch = config.prefetch;
    this.largest = config.slots + config.queueMax();
    this.idleAfterMs = 2.0 * config.heartbeatMs;
    this.brokers = brokers;
    this.holdings = holdings;
    this.outbox = outbox;
  }

  /** Gives the remainder of the split to the next broker. */
  void rotate() {
    rotation++;
  }

  /**
   * The number of steps that are expected to end in PREFETCH_MS, and that may wait, here or in the
   * runner.
   */
  int ahead(double nowMs) {
    if (prefetch == 0) {
      return 0;
    }
    double stepsMax = stepBytes == 0 ? WAITING_MAX : WAITING_BYTES_MAX / stepBytes;
    double fitting = Math.min(WAITING_MAX, stepsMax);
    return (int) (Math.min(holdings.pace.stepsIn(Limits.PREFETCH_MS, nowMs), fitting) + 0.5);
  }

  /** The number of steps that may wait for a slot. */
  private int room(double nowMs) {
    return Math.max(Math.max(prefetch, 0), ahead(nowMs));
  }

  /**
   * The number of further steps that are not refused: the total credit can be twice the capacity.
   */
  int places() {
    return 2 * largest - holdings.load;
  }

  /** Notes the size of the steps in a message. */
  void noteSize(double bytes) {
    stepBytes += (bytes - stepBytes) / 4;
  }

  /**
   * The members {@code free} and {@code slots_free} of the hello or heartbeat with this number,
   * which promise this credit.
   */
  OfferedToAll offerAll(long n, double nowMs) {
    Map<String, Integer> free = new LinkedHashMap<>();
    Map<String, Integer> slotsFree = new LinkedHashMap<>();
    for (BrokerPeer peer : brokers) {
      Place place = place(peer, nowMs);
      peer.promises.announce(n, place.free);
      free.put(peer.id, place.free);
      slotsFree.put(peer.id, place.slotsFree);
    }
    return new OfferedToAll(free, slotsFree);
  }

  /** The members of another message to this broker, which promises this credit. */
  Offered offer(BrokerPeer peer, double nowMs) {
    Place place = place(peer, nowMs);
    peer.promises.name(place.free);
    return new Offered(place.free, place.slotsFree);
  }

  /**
   * True if another broker was held back by promises, and may get places that this one no longer
   * has.
   */
  boolean moves(BrokerPeer peer) {
    for (BrokerPeer other : brokers) {
      if (other != peer && other.isHeldBack && other.session != null) {
        return true;
      }
    }
    return false;
  }

  /** True if this broker was idle until now, and its share was lent to another one. */
  boolean isWaking(BrokerPeer peer, double nowMs) {
    if (brokers.size() == 1 || !isIdle(peer, nowMs)) {
      return false;
    }
    for (BrokerPeer other : brokers) {
      if (other != peer && other.session != null) {
        return true;
      }
    }
    return false;
  }

  private Place place(BrokerPeer peer, double nowMs) {
    Place place = split(peer, nowMs);
    peer.isHeldBack = place.isHeldBack;
    return place;
  }

  /**
   * The number of further steps, how many of them would start at once, and whether promises to
   * others hold the broker back.
   */
  private Place split(BrokerPeer peer, double nowMs) {
    if (isClosed(peer)) {
      return new Place(0, 0, false);
    }
    int capacity = slots + room(nowMs);
    largest = Math.max(largest, capacity);
    int load = holdings.load;
    if (brokers.size() == 1) {
      return new Place(Math.max(0, capacity - load), Math.max(0, slots - load), false);
    }
    int left = Math.min(shareLeft(capacity, peer, nowMs), capacity - load);
    long promised = 0;
    for (BrokerPeer other : brokers) {
      if (other != peer && other.session != null) {
        promised += other.promises.promised();
      }
    }
    int free = (int) Math.max(0, Math.min(left, capacity - load - promised));
    int slotsLeft = Math.min(shareLeft(slots, peer, nowMs), slots - load);
    return new Place(free, Math.max(0, Math.min(free, slotsLeft)), free < left);
  }

  private boolean isClosed(BrokerPeer peer) {
    return isDraining || isQuiet || isFull || peer.isQuiet || outbox.bytes > OUTBOX_BYTES_MAX;
  }

  /**
   * The part of this broker's share of the capacity that it does not use yet; negative if it uses
   * more.
   */
  private int shareLeft(int capacity, BrokerPeer peer, double nowMs) {
    List<Shares.Claim> claims = new ArrayList<>();
    int index = 0;
    for (BrokerPeer other : brokers) {
      if (other == peer) {
        index = claims.size();
      } else if (other.session == null) {
        continue;
      }
      claims.add(new Shares.Claim(other.load, isIdle(other, nowMs)));
    }
    return Shares.split(capacity, claims, index, rotation);
  }

  private boolean isIdle(BrokerPeer peer, double nowMs) {
    return peer.load == 0 && peer.stepsMs + idleAfterMs <= nowMs;
  }

  // -- return -------------------------------------------------------------------------------------

  /** Looks for steps that no longer fit, after a while, if more are held than there are slots. */
  void watch(double nowMs) {
    if (holdings.load > slots + Math.max(prefetch, 0)) {
      returnAtMs = Math.min(returnAtMs, nowMs + RETURN_EVERY_MS);
    }
  }

  /**
   * The number of steps that no longer fit, and the brokers that may get them back. Called at
   * {@code returnAtMs}.
   *
   * <p>A broker that still has credit would send the steps again at once, so none is returned while
   * some are left. That is also why steps that wait for their handler's concurrency are not
   * returned while they fit into the slots. Of several brokers, those get steps back that use their
   * whole share.
   */
  Excess excess(double nowMs) {
    returnAtMs = Session.NEVER;
    watch(nowMs);
    int load = holdings.load;
    int room = room(nowMs);
    int capacity = slots + room;
    int fitting = capacity;
    int tolerated = slots + RETURN_FACTOR * room;
    if (brokers.size() > 1) { // credit that was promised before steps became longer
      fitting = 2 * capacity;
      tolerated = fitting;
    }
    if (load <= tolerated) {
      return new Excess(0, Set.of());
    }
    Set<BrokerPeer> peers = new LinkedHashSet<>();
    for (BrokerPeer peer : brokers) {
      if (isClosed(peer) || shareLeft(capacity, peer, nowMs) <= 0) {
        peers.add(peer);
      }
    }
    return new Excess(load - fitting, peers);
  }
}
