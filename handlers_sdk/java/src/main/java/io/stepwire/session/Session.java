package io.stepwire.session;

import io.stepwire.protocol.Codec;
import io.stepwire.protocol.FromBroker;
import io.stepwire.protocol.FromBroker.Ack;
import io.stepwire.protocol.FromBroker.Adopt;
import io.stepwire.protocol.FromBroker.Cancel;
import io.stepwire.protocol.FromBroker.Go;
import io.stepwire.protocol.FromBroker.HeartbeatAck;
import io.stepwire.protocol.FromBroker.Here;
import io.stepwire.protocol.FromBroker.InSession;
import io.stepwire.protocol.FromBroker.Refused;
import io.stepwire.protocol.FromBroker.Reset;
import io.stepwire.protocol.FromBroker.Steps;
import io.stepwire.protocol.FromBroker.Welcome;
import io.stepwire.protocol.FromWorker.Adopted;
import io.stepwire.protocol.HeldItem;
import io.stepwire.protocol.InvalidMessage;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.ProgressItem;
import io.stepwire.protocol.Result;
import io.stepwire.protocol.Topics;
import io.stepwire.session.Action.Level;
import io.stepwire.session.HeldDelivery.State;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.function.DoubleSupplier;

/**
 * One worker's sessions with all its brokers: receives facts, and returns actions.
 *
 * <p>The caller passes the time with every call, in milliseconds of its own clock. It passes all
 * facts that have arrived, then calls {@link #actions}, and calls it again at {@link #wakeAt} at
 * the latest. Results of one batch that finished in the meantime are sent in one message.
 *
 * <p>The guarantees: a process runs a delivery at most once. No step starts after its broker may
 * consider this worker dead. An at_most_once step starts only after the broker's go. A result is
 * kept until a broker has committed it.
 */
public final class Session {
  public static final double NEVER = Double.POSITIVE_INFINITY;

  private final byte[] inbox;
  private final int bytesMax;
  private final Outgoing out;
  private final Brokers brokers = new Brokers();
  private final Slots slots;
  private final HeldDeliveries holdings;
  private final ResultsOutbox outbox;
  private final Runs runs;
  private final Credit credit;
  private final Intake intake;
  private final ResultsReporting reporting;
  private final ProgressReports progress;
  private final Announcements announcements;
  private final Leases leases;
  private final BrokerLinks endpoints;
  private boolean hasQuit;

  /** {@code random} returns numbers in [0, 1). */
  public Session(Config config, DoubleSupplier random) {
    inbox = Topics.toWorker(config.worker);
    bytesMax = config.maxMessageBytes;
    Offers offers = new Offers(config.offers);
    out = new Outgoing(config.worker);
    slots = new Slots(config.slots, offers);
    holdings = new HeldDeliveries(slots, new Pace(config.queueMax()));
    outbox = new ResultsOutbox(out);
    runs = new Runs(offers, slots, holdings, out);
    credit = new Credit(config, brokers, holdings, outbox);
    intake = new Intake(offers, config.acceptDelayMs, brokers, holdings, credit, outbox, out);
    reporting = new ResultsReporting(holdings, credit, intake, outbox, out);
    progress = new ProgressReports(holdings, out);
    announcements = new Announcements(config, random, brokers, holdings, credit, out);
    leases = new Leases(brokers, announcements, credit, holdings, runs, outbox, out);
    endpoints = new BrokerLinks(config, brokers, holdings, out);
  }

  // -- facts in -----------------------------------------------------------------------------------

  public void start(double nowMs) {
    announcements.start(nowMs);
    endpoints.start(nowMs);
  }

  /** Receives a frame of the SUB socket. */
  public void receive(byte[] frame, double nowMs) {
    leases.check(nowMs);
    boolean isInbox = Topics.isOf(frame, inbox);
    if (!isInbox && !Topics.isOf(frame, Topics.BROKERS)) {
      return;
    }
    int from = isInbox ? inbox.length : Topics.BROKERS.length;
    int size = frame.length - from;
    if (size > bytesMax) {
      intake.onUnreadable(frame, from, "too_large", size + " bytes", nowMs);
      return;
    }
    FromBroker message;
    try {
      message = Codec.decodeBroker(frame, from);
    } catch (InvalidMessage refusal) {
      if (!refusal.code().equals("unknown_type")) {
        intake.onUnreadable(frame, from, "bad_message", refusal.getMessage(), nowMs);
      }
      return;
    }
    if (isInbox || message instanceof Here) {
      dispatch(message, size, nowMs);
    }
  }

  /** Reports the end of a run. The first report of a run counts. */
  public void finished(Item item, Result result, double nowMs) {
    HeldDelivery held = holdings.get(item);
    if (held == null || held.state != State.RUNNING) {
      holdings.releaseOrphan(item, nowMs);
      return;
    }
    Result kept = result;
    if (result.status() != Result.Status.COMPLETED
        && (held.isInterrupted || nowMs >= held.timeoutAtMs())) {
      kept = Failures.withoutVerdict(held, result);
    }
    reporting.add(held, kept, nowMs);
    if (progress.sendAtMs != NEVER) {
      progress.forget(held);
    }
    holdings.finish(held, nowMs);
  }

  /**
   * Returns a step to its broker: its run did not start, or had no effect, so another worker may
   * run the step.
   */
  public void giveBack(Item item, double nowMs) {
    HeldDelivery held = holdings.get(item);
    if (held == null || held.state != State.RUNNING) {
      holdings.releaseOrphan(item, nowMs);
      return;
    }
    intake.giveBack(List.of(held), credit.isDraining ? "draining" : "busy", nowMs);
  }

  public void progressed(ProgressItem report, double nowMs) {
    HeldDelivery held = holdings.get(report.item());
    if (held != null && held.state == State.RUNNING) {
      progress.add(report, nowMs);
    }
  }

  /** Accepts no new steps, and finishes those that are held. */
  public void quiet(double nowMs) {
    credit.isQuiet = true;
    announcements.requestHeartbeat(nowMs);
  }

  /** Reports whether the runner accepts no steps at the moment, although slots are free. */
  public void full(boolean isFull, double nowMs) {
    if (isFull != credit.isFull) {
      credit.isFull = isFull;
      announcements.requestHeartbeat(nowMs);
    }
  }

  /** Returns steps that have not started, finishes those that run, then {@link Action.Quit}. */
  public void drain(double nowMs) {
    if (credit.isDraining) {
      return;
    }
    credit.isDraining = true;
    leases.check(nowMs);
    intake.giveBack(holdings.withdraw(), "draining", nowMs);
    out.log(Level.INFO, "worker_drains", "running", holdings.running().size());
    announcements.requestHeartbeat(nowMs);
  }

  /** Asks every run to stop, because the time to drain is over. Returns the number of runs. */
  public int expel() {
    return runs.interruptAll("shutdown");
  }

  // -- actions out --------------------------------------------------------------------------------

  /** All actions that are due now, in their order. */
  public List<Action> actions(double nowMs) {
    // Called for every frame and every end of a run, so a part that is not due costs only a
    // comparison.
    if (nowMs >= leases.checkAtMs) {
      leases.check(nowMs);
    }
    if (nowMs >= runs.timeoutAtMs) {
      runs.stopOverdue(nowMs);
    }
    handOver(nowMs);
    if (nowMs >= credit.returnAtMs) {
      returnExcess(nowMs);
    }
    if (reporting.isDue(nowMs, slots.taken)) {
      reporting.sendDue(nowMs, slots.taken);
    }
    if (nowMs >= outbox.resendAtMs) {
      outbox.resend(nowMs);
    }
    if (nowMs >= runs.askAtMs) {
      runs.ask(nowMs);
    }
    if (nowMs >= intake.acceptAtMs) {
      intake.acceptDue(nowMs);
    }
    if (nowMs >= progress.sendAtMs) {
      progress.send(nowMs);
    }
    if (nowMs >= announcements.helloAtMs) {
      announcements.hello(nowMs);
    }
    if (nowMs >= announcements.heartbeatAtMs) {
      heartbeat(nowMs);
    }
    if (nowMs >= endpoints.checkAtMs) {
      endpoints.check(nowMs);
    }
    if (mayQuit()) {
      hasQuit = true;
      heartbeat(nowMs);
      out.add(new Action.Quit());
    }
    return out.take();
  }

  /**
   * The latest time for the next call of {@link #actions}; minus infinity: now. At that time,
   * nothing may be due.
   */
  public double wakeAt() {
    if (!out.isEmpty() || slots.hasNext() || reporting.hasWhole()) {
      return -NEVER;
    }
    if (reporting.sendAtMs != NEVER && slots.taken == 0) {
      return -NEVER;
    }
    if (mayQuit()) {
      return -NEVER;
    }
    double atMs = Math.min(leases.checkAtMs, runs.timeoutAtMs);
    atMs = Math.min(atMs, Math.min(credit.returnAtMs, reporting.sendAtMs));
    atMs = Math.min(atMs, Math.min(outbox.resendAtMs, runs.askAtMs));
    atMs = Math.min(atMs, Math.min(intake.acceptAtMs, progress.sendAtMs));
    atMs = Math.min(atMs, Math.min(announcements.helloAtMs, announcements.heartbeatAtMs));
    return Math.min(atMs, endpoints.checkAtMs);
  }

  /**
   * True if results wait for others that are about to end. Then the caller need not report each end
   * at once: within the next millisecond is soon enough.
   */
  public boolean awaitsResults() {
    return reporting.sendAtMs != NEVER && slots.taken >= holdings.load;
  }

  /** The number of deliveries that are held: steps, and results that no broker acknowledged. */
  public int heldCount() {
    return holdings.size();
  }

  public List<HeldItem> holding(double nowMs) {
    return holdings.report(nowMs);
  }

  /** The link to this broker; null if it is not known. */
  public Link linkOf(String broker) {
    return endpoints.linkOf(broker);
  }

  /** The links to brokers that no session is open with. */
  public List<Link> linksWithoutSession() {
    return endpoints.withoutSession();
  }

  // -- messages -----------------------------------------------------------------------------------

  private void dispatch(FromBroker message, int size, double nowMs) {
    if (message instanceof InSession inSession) {
      BrokerPeer peer = brokers.get(message.broker());
      if (peer != null
          && inSession.session().equals(peer.session)
          && peer.epoch == message.epoch()) {
        dispatchInSession(peer, inSession, size, nowMs);
      }
      return; // not in the current session: the next heartbeat informs the sender
    }
    if (message instanceof Ack ack) {
      reporting.onAck(ack, nowMs);
    } else if (message instanceof Here here) {
      leases.onHere(brokers.getOrAdd(here.broker(), nowMs), here, nowMs);
    } else if (message instanceof Welcome welcome) {
      BrokerPeer peer = brokers.getOrAdd(welcome.broker(), nowMs);
      if (leases.onWelcome(peer, welcome, nowMs)) {
        endpoints.learn(peer, welcome.brokers(), nowMs);
      }
    } else if (message instanceof Reset reset) {
      leases.onReset(brokers.getOrAdd(reset.broker(), nowMs), reset, nowMs);
    } else if (message instanceof Refused refused) {
      reporting.onRefused(refused, nowMs);
    }
  }

  private void dispatchInSession(BrokerPeer peer, InSession message, int size, double nowMs) {
    if (message instanceof Steps steps) {
      boolean isWaking = credit.isWaking(peer, nowMs);
      intake.onSteps(peer, steps, size, nowMs);
      if (isWaking) {
        announcements.recallCredit(nowMs);
      }
    } else if (message instanceof HeartbeatAck ack) {
      leases.onHeartbeatAck(peer, ack, nowMs);
      if (ack.brokers() != null) {
        endpoints.learn(peer, ack.brokers(), nowMs);
      }
      if (ack.quit()) {
        drain(nowMs);
      }
    } else if (message instanceof Go go) {
      runs.onGo(peer, go.items(), nowMs);
    } else if (message instanceof Cancel cancel) {
      onCancel(peer, cancel, nowMs);
    } else if (message instanceof Adopt adopt) {
      onAdopt(peer, adopt, nowMs);
    }
  }

  private void onCancel(BrokerPeer peer, Cancel message, double nowMs) {
    List<HeldDelivery> notStarted = new ArrayList<>();
    for (Item item : message.items()) {
      HeldDelivery held = holdings.get(item);
      if (held == null) {
        holdings.tombstones.disown(item, peer, nowMs);
      } else if (held.peer == peer && held.state != State.DONE) {
        if (held.withdraw()) {
          notStarted.add(held);
        } else {
          runs.interrupt(held, message.reason());
        }
      }
    }
    intake.giveBack(notStarted, "stale", nowMs);
  }

  /**
   * Moves deliveries to another broker, or to the same one after a restart. Unknown ones will never
   * start here.
   */
  private void onAdopt(BrokerPeer peer, Adopt message, double nowMs) {
    List<HeldItem> answers = new ArrayList<>();
    Map<ResultsMessage, List<HeldDelivery>> moved = new LinkedHashMap<>();
    for (Item item : new LinkedHashSet<>(message.items())) {
      HeldDelivery held = holdings.get(item);
      if (held == null || held.state == null) {
        holdings.tombstones.disown(item, peer, nowMs);
        answers.add(new HeldItem(item, "unknown", 0));
        continue;
      }
      answers.add(new HeldItem(item, held.reportedState().word, held.ageMs(nowMs)));
      if (held.message != null) {
        outbox.hasten(held.message, nowMs);
        if (held.message.peer != peer) {
          moved.computeIfAbsent(held.message, each -> new ArrayList<>()).add(held);
        }
      }
      holdings.move(held, peer);
    }
    for (List<HeldItem> part : Outgoing.parts(answers)) {
      out.sendTo(peer, new Adopted(peer.session, part));
    }
    moved.forEach((results, deliveries) -> reporting.changeOwner(results, deliveries, peer, nowMs));
  }

  // -- helpers ------------------------------------------------------------------------------------

  /**
   * Hands steps to the runner, as far as slots and pace permit, and watches those that still wait.
   */
  private void handOver(double nowMs) {
    if (slots.hasQueue()) {
      slots.ahead = credit.ahead(nowMs);
      if (slots.hasNext()) {
        runs.startQueued(nowMs);
      }
    }
    credit.watch(nowMs);
  }

  /** Returns the newest steps that no longer fit, because steps have become longer. */
  private void returnExcess(double nowMs) {
    Credit.Excess excess = credit.excess(nowMs);
    if (excess.steps() > 0) {
      intake.giveBack(holdings.withdrawNewest(excess.steps(), excess.peers()), "busy", nowMs);
    }
  }

  private boolean mayQuit() {
    return credit.isDraining && holdings.size() == 0 && !hasQuit;
  }

  private void heartbeat(double nowMs) {
    holdings.tombstones.sweep(nowMs);
    if (!announcements.isForCredit) {
      credit.rotate();
    }
    announcements.heartbeat(nowMs);
  }
}
