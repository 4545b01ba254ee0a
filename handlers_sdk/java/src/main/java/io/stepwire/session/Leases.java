package io.stepwire.session;

import io.stepwire.protocol.FromBroker.HeartbeatAck;
import io.stepwire.protocol.FromBroker.Here;
import io.stepwire.protocol.FromBroker.Reset;
import io.stepwire.protocol.FromBroker.Welcome;
import io.stepwire.protocol.Limits;
import io.stepwire.session.Action.Level;
import io.stepwire.session.HeldDelivery.State;
import java.util.Set;

/**
 * The session with each broker: opened by hello and welcome, valid during its lease, dropped after
 * it.
 *
 * <p>A lease begins when the echoed hello or heartbeat was sent, on the worker's own clock.
 * Therefore the lease ends at the worker before the broker may consider the worker dead, and their
 * clocks need not agree.
 */
final class Leases {
  /** Resets that a hello does not change. */
  private static final Set<String> PERMANENT = Set.of("version", "unauthorized");

  double checkAtMs = Session.NEVER;
  private final Brokers brokers;
  private final Announcements announcements;
  private final Credit credit;
  private final HeldDeliveries holdings;
  private final Runs runs;
  private final ResultsOutbox outbox;
  private final Outgoing out;

  Leases(
      Brokers brokers,
      Announcements announcements,
      Credit credit,
      HeldDeliveries holdings,
      Runs runs,
      ResultsOutbox outbox,
      Outgoing out) {
    this.brokers = brokers;
    this.announcements = announcements;
    this.credit = credit;
    this.holdings = holdings;
    this.runs = runs;
    this.outbox = outbox;
    this.out = out;
  }

  /**
   * Drops sessions whose lease is over: no step may start in them, and their messages are ignored.
   */
  void check(double nowMs) {
    if (nowMs < checkAtMs) {
      return;
    }
    double atMs = Session.NEVER;
    for (BrokerPeer peer : brokers) {
      if (peer.lease.untilMs != 0 && nowMs >= peer.lease.untilMs) {
        drop(peer, "lease_over", nowMs, Level.WARNING);
      }
      if (peer.lease.untilMs != 0) {
        atMs = Math.min(atMs, peer.lease.untilMs);
      }
    }
    checkAtMs = atMs;
  }

  void onHere(BrokerPeer peer, Here message, double nowMs) {
    if (isReplaced(peer, message.deployment())) {
      replace(peer, message.deployment(), message.epoch(), nowMs);
      return;
    }
    if (message.epoch() < peer.epoch) {
      return;
    }
    if (message.epoch() > peer.epoch) {
      // The broker restarted. Its deliveries continue with the current lease; the new session will
      // adopt them.
      peer.epoch = message.epoch();
      peer.session = null;
    }
    peer.deployment = message.deployment();
    peer.nAfter = out.n();
    announcements.requestHello(nowMs);
  }

  /**
   * Opens or extends a session. True if the message answers a hello with the current session
   * number, and its lease is not over yet.
   */
  boolean onWelcome(BrokerPeer peer, Welcome message, double nowMs) {
    String session = message.session();
    int point = session.indexOf('.');
    long epoch = Long.parseLong(session.substring(0, point));
    long k = Long.parseLong(session.substring(point + 1));
    double sentMs = out.sentMs(message.n());
    if (epoch != message.epoch()
        || k != peer.next
        || message.n() <= peer.nAfter
        || Double.isNaN(sentMs)) {
      return false;
    }
    if (isReplaced(peer, message.deployment())) {
      replace(peer, message.deployment(), message.epoch(), nowMs);
      return false;
    }
    double untilMs = sentMs + message.leaseMs() * Limits.LEASE_WORKER_FACTOR;
    if (epoch < peer.epoch || untilMs <= nowMs) {
      // Sent before a restart, or its lease is over; the broker answers the next hello, too.
      return false;
    }
    boolean isNew = !session.equals(peer.session);
    peer.epoch = epoch;
    peer.deployment = message.deployment();
    peer.bytesMax = message.maxMessageBytes();
    peer.leaseMs = message.leaseMs();
    long wantedMs = message.heartbeatMs() == 0 ? Limits.HEARTBEAT_MS : message.heartbeatMs();
    peer.heartbeatMs = Math.min(wantedMs, message.leaseMs() / 5);
    peer.promises.acknowledge(message.n());
    if (isNew) {
      peer.lease.untilMs = 0; // a restarted broker may have a shorter lease, which then applies
    }
    extend(peer, untilMs, nowMs);
    if (isNew) {
      open(peer, session, nowMs);
    }
    return true;
  }

  void onHeartbeatAck(BrokerPeer peer, HeartbeatAck message, double nowMs) {
    double sentMs = out.sentMs(message.n());
    if (!Double.isNaN(sentMs)) {
      extend(peer, sentMs + peer.leaseMs * Limits.LEASE_WORKER_FACTOR, nowMs);
    }
    if (peer.promises.acknowledge(message.n()) && credit.moves(peer)) {
      announcements.moveCredit(nowMs);
    }
    if (message.quiet() != peer.isQuiet) {
      peer.isQuiet = message.quiet();
      announcements.requestHeartbeat(nowMs);
    }
  }

  void onReset(BrokerPeer peer, Reset message, double nowMs) {
    if (message.next() == peer.next && message.epoch() >= peer.epoch) {
      boolean isError = PERMANENT.contains(message.code());
      drop(peer, message.code(), nowMs, isError ? Level.ERROR : Level.WARNING);
    }
  }

  private static boolean isReplaced(BrokerPeer peer, String deployment) {
    return peer.deployment != null && !peer.deployment.equals(deployment);
  }

  private void open(BrokerPeer peer, String session, double nowMs) {
    peer.session = session;
    peer.openedMs = nowMs;
    peer.floor = -1;
    peer.isQuiet = false;
    announcements.requestHeartbeat(nowMs); // carries the credit
    outbox.hastenAll(peer, nowMs);
    runs.hasten(peer, nowMs);
    announcements.stopHelloIfWelcomed();
    out.log(Level.INFO, "session_opened", "broker", peer.id, "session", session);
  }

  private void extend(BrokerPeer peer, double untilMs, double nowMs) {
    peer.answeredMs = nowMs;
    if (untilMs > peer.lease.untilMs) {
      peer.lease.untilMs = untilMs;
      checkAtMs = Math.min(checkAtMs, untilMs);
    }
  }

  /**
   * Ends the session. Deliveries that have not started here never start, because another worker may
   * get them.
   */
  private void drop(BrokerPeer peer, String why, double nowMs, Level level) {
    int dropped = 0;
    for (HeldDelivery held : holdings.ofBroker(peer)) {
      if (held.state == State.DONE) {
        continue;
      }
      if (held.withdraw()) {
        holdings.bury(held, nowMs);
        dropped++;
      } else {
        runs.interrupt(held, "lease_lost");
      }
    }
    String session = peer.session;
    peer.session = null;
    peer.next++;
    peer.lease.untilMs = 0;
    peer.nAfter = out.n();
    out.log(
        level,
        "session_dropped",
        "broker",
        peer.id,
        "session",
        session,
        "why",
        why,
        "not_started",
        dropped);
    requestHello(peer, session, why, nowMs);
  }

  /**
   * Sends hello at once after a drop, and after a growing pause if the broker keeps ending the
   * session.
   */
  private void requestHello(BrokerPeer peer, String session, String why, double nowMs) {
    if (session != null && nowMs - peer.openedMs >= peer.leaseMs / 2.0) {
      peer.dropWaitMs = 0;
    }
    double waitMs;
    if (PERMANENT.contains(why)) {
      waitMs = Limits.DROP_WAIT_MAX_MS;
      peer.dropWaitMs = Limits.DROP_WAIT_MAX_MS;
    } else {
      waitMs = peer.dropWaitMs;
      peer.dropWaitMs =
          Math.min(Limits.DROP_WAIT_MAX_MS, Math.max(Limits.DROP_WAIT_MS, 2 * waitMs));
    }
    if (waitMs > 0) {
      announcements.requestHelloAfter(waitMs, peer, nowMs);
    } else {
      announcements.requestHello(nowMs);
    }
  }

  /**
   * Discards everything of a broker that has another database: earlier deliveries have no owner,
   * and their ids now belong to other steps.
   */
  private void replace(BrokerPeer peer, String deployment, long epoch, double nowMs) {
    int discarded = outbox.discard(peer);
    for (HeldDelivery held : holdings.ofBroker(peer)) {
      if (held.state != State.RUNNING || held.withdraw()) {
        holdings.bury(held, nowMs);
      } else {
        runs.interrupt(held, "superseded");
        holdings.orphan(held, nowMs);
      }
    }
    out.log(
        Level.ERROR,
        "deployment_replaced",
        "broker",
        peer.id,
        "deployment",
        deployment,
        "results_discarded",
        discarded);
    drop(peer, "deployment_replaced", nowMs, Level.WARNING);
    holdings.tombstones.forgetBroker(peer);
    peer.deployment = deployment;
    peer.epoch = epoch;
  }
}
