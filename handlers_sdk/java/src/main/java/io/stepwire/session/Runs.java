package io.stepwire.session;

import io.stepwire.protocol.FromWorker.Start;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.Limits;
import io.stepwire.session.HeldDelivery.State;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Runs, from their slot to their end: permission for at_most_once steps, start, timeouts, cancels.
 */
final class Runs {
  private static final double RECHECK_MS = 50.0; // for a run that has not begun by its deadline

  double askAtMs = Session.NEVER;
  double timeoutAtMs = Session.NEVER;
  private final List<Offer> offers;
  private final Slots slots;
  private final HeldDeliveries holdings;
  private final Outgoing out;

  Runs(Offers offers, Slots slots, HeldDeliveries holdings, Outgoing out) {
    this.offers = offers.byNumber();
    this.slots = slots;
    this.holdings = holdings;
    this.out = out;
  }

  void startQueued(double nowMs) {
    HeldDelivery held;
    while ((held = slots.takeNext(nowMs)) != null) {
      if (held.isAtMostOnce) {
        held.state = State.ASKING;
        held.askAtMs = nowMs;
        held.askWaitMs = Limits.START_RETRANSMIT_MS;
        slots.asking.put(held.item, held);
        askAtMs = nowMs;
      } else {
        start(held, nowMs);
      }
    }
  }

  /**
   * Sends {@code start} for the at_most_once steps that are due. Resent until the broker answers go
   * or cancel.
   */
  void ask(double nowMs) {
    Map<BrokerPeer, List<Item>> due = new LinkedHashMap<>();
    askAtMs = Session.NEVER;
    for (HeldDelivery held : slots.asking.values()) {
      if (held.askAtMs <= nowMs) {
        due.computeIfAbsent(held.peer, peer -> new ArrayList<>()).add(held.item);
        held.askAtMs = nowMs + held.askWaitMs;
        held.askWaitMs = Math.min(held.askWaitMs * 2, Limits.START_RETRANSMIT_MAX_MS);
      }
      askAtMs = Math.min(askAtMs, held.askAtMs);
    }
    due.forEach(
        (peer, items) -> {
          if (peer.session != null) {
            for (List<Item> part : Outgoing.parts(items)) {
              out.sendTo(peer, new Start(peer.session, part));
            }
          }
        });
  }

  /** Asks this broker with the next actions, because its session has just opened. */
  void hasten(BrokerPeer peer, double nowMs) {
    for (HeldDelivery held : slots.asking.values()) {
      if (held.peer == peer) {
        held.askAtMs = nowMs;
        askAtMs = nowMs;
      }
    }
  }

  void onGo(BrokerPeer peer, List<Item> items, double nowMs) {
    for (Item item : items) {
      HeldDelivery held = slots.asking.get(item);
      if (held != null && held.peer == peer) {
        slots.asking.remove(item);
        start(held, nowMs);
      }
    }
  }

  /**
   * Asks a run that has begun to stop. The first reason counts, and a run is asked once, although a
   * broker repeats its cancel at every heartbeat that lists the run. {@code lease_lost} informs the
   * handler, and stops nothing.
   */
  void interrupt(HeldDelivery held, String reason) {
    held.isInterrupted = true;
    if (!held.isStopping) {
      held.isStopping = !reason.equals("lease_lost");
      out.add(new Action.CancelRun(held.item, reason));
    }
  }

  /** Asks every run to stop. Returns their number. */
  int interruptAll(String reason) {
    List<HeldDelivery> running = holdings.running();
    running.forEach(held -> interrupt(held, reason));
    return running.size();
  }

  void stopOverdue(double nowMs) {
    double atMs = Session.NEVER;
    for (HeldDelivery held : holdings.running()) {
      Run run = held.run;
      if (!run.hasStarted()) { // may begin at any time
        double deadlineMs = Math.max(run.deadlineMs(), nowMs + RECHECK_MS);
        atMs = Math.min(atMs, Math.min(nowMs + run.timeoutMs(), deadlineMs));
      } else if (run.timeoutAtMs() > nowMs) {
        atMs = Math.min(atMs, run.timeoutAtMs());
      } else {
        interrupt(held, "timeout");
      }
    }
    timeoutAtMs = atMs;
  }

  private void start(HeldDelivery held, double nowMs) {
    assert nowMs < held.peer.lease.untilMs : "a step must not start after its broker's lease";
    held.state = State.RUNNING;
    long stepTimeoutMs = held.step.metadata().timeoutMs();
    double timeoutMs = stepTimeoutMs == 0 ? Session.NEVER : stepTimeoutMs;
    double ownMs = offers.get(held.offer).timeoutMs();
    if (ownMs > 0 && ownMs < timeoutMs) {
      timeoutMs = ownMs;
    }
    long deadlineMs = held.step.metadata().deadlineMs();
    double endsMs = deadlineMs < 0 ? Session.NEVER : held.receivedMs + deadlineMs;
    double soonestMs = Math.min(nowMs + timeoutMs, endsMs); // if the run begins at once
    timeoutAtMs = Math.min(timeoutAtMs, soonestMs);
    held.run = new Run(held.step, held.offer, held.peer.lease, timeoutMs, endsMs);
    out.add(held.run);
  }
}
