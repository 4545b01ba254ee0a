package io.stepwire.session;

import io.stepwire.protocol.Item;
import io.stepwire.protocol.Limits;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The deliveries that wait to be handed to the runner, and those that the runner has. A delivery is
 * taken from its hand-over, or from its request for permission, to its end.
 *
 * <p>A runner starts the next step the moment a slot is free. It can only do so if it has that step
 * already, so at_least_once steps are handed over ahead of free slots: as many as the observed pace
 * says. The runner itself keeps to the slots and to the concurrency of each handler ({@code
 * RunSlots}). An at_most_once step asks its broker for permission, and a slot must be free for it
 * from then on. So it is never handed over ahead, and while one asks, no step is.
 */
final class Slots {
  final Map<Item, HeldDelivery> asking = new LinkedHashMap<>(); // at_most_once: waits for its go
  int taken;
  int ahead; // the number of steps that may be handed over ahead of free slots
  private final Deque<HeldDelivery> unblocked = new ArrayDeque<>(); // before `queued`
  private final Deque<HeldDelivery> queued = new ArrayDeque<>();
  private final int slots;
  private final Map<Integer, Limited> limited = new HashMap<>();

  Slots(int slots, Offers offers) {
    this.slots = slots;
    List<Offer> byNumber = offers.byNumber();
    for (int i = 0; i < byNumber.size(); i++) {
      if (byNumber.get(i).concurrency() > 0) {
        limited.put(i, new Limited(byNumber.get(i).concurrency()));
      }
    }
  }

  void queue(HeldDelivery held) {
    queued.add(held);
  }

  boolean hasQueue() {
    return !queued.isEmpty() || !unblocked.isEmpty();
  }

  /**
   * True if the delivery at the head of the queue can be taken, unless its handler's concurrency is
   * used up.
   */
  boolean hasNext() {
    HeldDelivery head = unblocked.isEmpty() ? queued.peekFirst() : unblocked.peekFirst();
    if (head == null) {
      return false;
    }
    boolean mustHaveSlot = !asking.isEmpty() || head.isAtMostOnce;
    return taken < (mustHaveSlot ? slots : slots + ahead);
  }

  /** Takes the next delivery from the queue. Null: nothing in the queue can be taken now. */
  HeldDelivery takeNext(double nowMs) {
    while (hasNext()) {
      boolean isUnblocked = !unblocked.isEmpty();
      HeldDelivery held = isUnblocked ? unblocked.pollFirst() : queued.pollFirst();
      Limited limit = limited.get(held.offer);
      if (held.state != HeldDelivery.State.QUEUED) {
        if (limit != null) { // cancelled while queued, perhaps after it was unblocked
          unblock(limit, nowMs);
        }
        continue;
      }
      if (limit != null) {
        if (isUnblocked) {
          if (room(limit, held, nowMs) <= 0) {
            limit.blocked.addFirst(held);
            continue;
          }
        } else if (!limit.blocked.isEmpty() || room(limit, held, nowMs) <= 0) {
          limit.blocked.addLast(held);
          continue;
        }
        limit.take(nowMs);
      }
      taken++;
      return held;
    }
    return null;
  }

  /** The delivery has ended, or will never start. */
  void release(HeldDelivery held, double nowMs) {
    taken--;
    Limited limit = limited.get(held.offer);
    if (limit != null) {
      limit.release(nowMs);
      unblock(limit, nowMs);
    }
  }

  /** Puts deliveries that waited for this handler's concurrency before the queue. */
  private void unblock(Limited limit, double nowMs) {
    int moved = 0;
    while (!limit.blocked.isEmpty()) {
      HeldDelivery head = limit.blocked.peekFirst();
      boolean isQueued = head.state == HeldDelivery.State.QUEUED;
      if (isQueued && room(limit, head, nowMs) <= moved) {
        return;
      }
      limit.blocked.pollFirst();
      if (isQueued) {
        unblocked.addLast(head);
        moved++;
      }
    }
  }

  private int room(Limited limit, HeldDelivery held, double nowMs) {
    return limit.room(!asking.isEmpty() || held.isAtMostOnce, nowMs);
  }

  /**
   * The deliveries of a handler with its own concurrency. Its pace limits how many run ahead of it.
   */
  private static final class Limited {
    private final int concurrency;
    private final Deque<HeldDelivery> blocked = new ArrayDeque<>();
    private final Pace pace = new Pace(0.0);
    private int taken;

    Limited(int concurrency) {
      this.concurrency = concurrency;
    }

    int room(boolean withoutAhead, double nowMs) {
      int ahead = withoutAhead ? 0 : (int) (pace.stepsIn(Limits.PREFETCH_MS, nowMs) + 0.5);
      return concurrency + ahead - taken;
    }

    void take(double nowMs) {
      taken++;
      pace.resume(nowMs);
    }

    void release(double nowMs) {
      taken--;
      pace.countEnd(nowMs);
      if (taken == 0) {
        pace.pause(nowMs);
      }
    }
  }
}
