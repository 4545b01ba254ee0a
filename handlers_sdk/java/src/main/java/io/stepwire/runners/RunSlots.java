package io.stepwire.runners;

import io.stepwire.session.Offer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.function.ToIntFunction;

/**
 * The slots of a worker's runner, and the calls that wait for one. Any thread may call these
 * methods.
 *
 * <p>The calls start in the order in which they were handed over, and wait for a slot and for a
 * place in the concurrency of their handler.
 */
public final class RunSlots<C> {
  private static final int UNLIMITED = -1;

  private final ToIntFunction<C> offerOf;
  private final Deque<C> waiting = new ArrayDeque<>();
  private final int[] places; // by offer
  private final List<Deque<C>> blocked = new ArrayList<>(); // by offer
  private int free;

  /** {@code offerOf} returns the number of the offer of a call's handler. */
  public RunSlots(int slots, List<Offer> offers, ToIntFunction<C> offerOf) {
    this.free = slots;
    this.offerOf = offerOf;
    this.places = new int[offers.size()];
    for (int i = 0; i < places.length; i++) {
      int concurrency = offers.get(i).concurrency();
      places[i] = concurrency > 0 ? concurrency : UNLIMITED;
      blocked.add(new ArrayDeque<>());
    }
  }

  /** Adds calls. Returns those that have a slot now, and must be started. */
  public synchronized List<C> add(Collection<C> calls) {
    waiting.addAll(calls);
    List<C> started = new ArrayList<>();
    while (free > 0) {
      C call = next();
      if (call == null) {
        break;
      }
      free--;
      started.add(call);
    }
    return started;
  }

  /**
   * Releases the slot of a call. Returns the call that has the slot now, and must be started; or
   * null.
   */
  public synchronized C release(C call) {
    int offer = offerOf.applyAsInt(call);
    if (places[offer] != UNLIMITED) {
      C following = blocked.get(offer).pollFirst();
      if (following != null) {
        return following;
      }
      places[offer]++;
    }
    C following = next();
    if (following == null) {
      free++;
    }
    return following;
  }

  /**
   * The next call in the queue whose handler has a place. Calls before it wait for their own
   * handlers.
   */
  private C next() {
    C call;
    while ((call = waiting.pollFirst()) != null) {
      int offer = offerOf.applyAsInt(call);
      if (places[offer] == UNLIMITED) {
        return call;
      }
      if (places[offer] > 0) {
        places[offer]--;
        return call;
      }
      blocked.get(offer).addLast(call);
    }
    return null;
  }
}
