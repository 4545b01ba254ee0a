package io.stepwire.session;

import io.stepwire.protocol.HeldItem;
import io.stepwire.protocol.Item;
import io.stepwire.session.HeldDelivery.State;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Every delivery that this process holds, from its receipt until its result is acknowledged: the
 * list {@code holding} of heartbeats.
 */
final class HeldDeliveries {
  final Pace pace;
  final Tombstones tombstones = new Tombstones();
  int load; // deliveries that need a slot or have one
  private final Slots slots;
  private final Map<Item, HeldDelivery> held = new LinkedHashMap<>();
  private final Map<Item, HeldDelivery> orphans = new LinkedHashMap<>(); // of a replaced database

  HeldDeliveries(Slots slots, Pace pace) {
    this.slots = slots;
    this.pace = pace;
  }

  /** Null if this delivery is not held. */
  HeldDelivery get(Item item) {
    return held.get(item);
  }

  boolean isOrphan(Item item) {
    return !orphans.isEmpty() && orphans.containsKey(item);
  }

  int size() {
    return held.size();
  }

  List<HeldDelivery> running() {
    return held.values().stream().filter(each -> each.state == State.RUNNING).toList();
  }

  /**
   * All deliveries whose runs have not begun. They never will: the caller must end these
   * deliveries.
   */
  List<HeldDelivery> withdraw() {
    return held.values().stream().filter(HeldDelivery::withdraw).toList();
  }

  /**
   * At most {@code count} deliveries of these brokers whose runs have not begun, the newest first.
   * Not those that ask for permission.
   */
  List<HeldDelivery> withdrawNewest(int count, Set<BrokerPeer> peers) {
    List<HeldDelivery> newestFirst = new ArrayList<>(held.values());
    Collections.reverse(newestFirst);
    List<HeldDelivery> withdrawn = new ArrayList<>();
    for (HeldDelivery each : newestFirst) {
      if (withdrawn.size() >= count) {
        break;
      }
      if (peers.contains(each.peer)
          && each.state != State.ASKING
          && !(each.isAtMostOnce && each.state == State.RUNNING)
          && each.withdraw()) {
        withdrawn.add(each);
      }
    }
    return withdrawn;
  }

  List<HeldDelivery> ofBroker(BrokerPeer peer) {
    return held.values().stream().filter(each -> each.peer == peer).toList();
  }

  /** The member {@code holding} of hello and heartbeat. */
  List<HeldItem> report(double nowMs) {
    List<HeldItem> items = new ArrayList<>(held.size());
    for (HeldDelivery each : held.values()) {
      State state = each.reportedState();
      if (state != null) {
        items.add(new HeldItem(each.item, state.word, each.ageMs(nowMs)));
      }
    }
    return items;
  }

  /** Adds a delivery that was just received, and puts it into the run queue. */
  void add(HeldDelivery added) {
    held.put(added.item, added);
    added.peer.load++;
    load++;
    added.batch.open++;
    if (load == 1) {
      pace.resume(added.receivedMs);
    }
    slots.queue(added);
  }

  /** Records the end of a run. Only its result is kept. */
  void finish(HeldDelivery ended, double nowMs) {
    ended.state = State.DONE;
    ended.step = null;
    pace.countEnd(nowMs);
    lighten(ended, nowMs);
    slots.release(ended, nowMs);
  }

  /** Forgets the delivery, but keeps its tombstone. */
  void bury(HeldDelivery buried, double nowMs) {
    State state = buried.state;
    buried.state = null;
    if (state == null) {
      return;
    }
    held.remove(buried.item);
    tombstones.add(buried.item, buried.peer, buried.batch, nowMs);
    if (state == State.DONE) {
      buried.message = null;
      return;
    }
    buried.step = null;
    lighten(buried, nowMs);
    if (state == State.ASKING) {
      slots.asking.remove(buried.item);
    }
    if (state != State.QUEUED) {
      slots.release(buried, nowMs);
    }
  }

  /** Keeps tombstones of refused deliveries, so that they do not start if received again. */
  void buryUnread(BrokerPeer peer, HeldBatch batch, List<Item> items, double nowMs) {
    for (Item item : items) {
      if (!held.containsKey(item)) {
        tombstones.add(item, peer, batch, nowMs);
      }
    }
  }

  /** Changes the owner of a delivery to the broker that has adopted it. */
  void move(HeldDelivery moved, BrokerPeer peer) {
    if (moved.state != State.DONE) {
      moved.peer.load--;
      peer.load++;
    }
    moved.peer = peer;
    if (moved.run != null) {
      moved.run.moveTo(peer.lease); // a run that has not begun needs the lease of the new owner
    }
  }

  /** Lets a run end whose broker's database was replaced, but drops its result. */
  void orphan(HeldDelivery orphan, double nowMs) {
    held.remove(orphan.item);
    orphans.put(orphan.item, orphan);
    lighten(orphan, nowMs);
  }

  void releaseOrphan(Item item, double nowMs) {
    HeldDelivery orphan = orphans.remove(item);
    if (orphan != null) {
      slots.release(orphan, nowMs);
    }
  }

  private void lighten(HeldDelivery lightened, double nowMs) {
    lightened.peer.load--;
    load--;
    if (load == 0) {
      pace.pause(nowMs);
    }
  }
}
