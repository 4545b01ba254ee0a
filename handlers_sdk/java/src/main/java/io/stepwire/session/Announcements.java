package io.stepwire.session;

import io.stepwire.protocol.FromWorker.Bye;
import io.stepwire.protocol.FromWorker.Heartbeat;
import io.stepwire.protocol.FromWorker.Hello;
import io.stepwire.protocol.Limits;
import java.util.List;
import java.util.function.DoubleSupplier;

/**
 * The messages to every broker: hello (until every broker has sent welcome), heartbeats, and bye.
 */
final class Announcements {
  double helloAtMs = Session.NEVER;
  double heartbeatAtMs = Session.NEVER;
  boolean isForCredit; // the next heartbeat was requested only because places move
  private final Config config;
  private final DoubleSupplier random; // in [0, 1), for the jitter of the intervals
  private final Brokers brokers;
  private final HeldDeliveries holdings;
  private final Credit credit;
  private final Outgoing out;
  private final List<String> handlers;
  private final List<String> shadowSafe;
  private double helloWaitMs = Limits.HELLO_RETRY_MS;
  private double helloSentMs = -Session.NEVER;
  private long helloN;
  private boolean mayMoveCredit = true;

  Announcements(
      Config config,
      DoubleSupplier random,
      Brokers brokers,
      HeldDeliveries holdings,
      Credit credit,
      Outgoing out) {
    this.config = config;
    this.random = random;
    this.brokers = brokers;
    this.holdings = holdings;
    this.credit = credit;
    this.out = out;
    handlers = config.offers.stream().map(Offer::pattern).toList();
    shadowSafe = config.offers.stream().filter(Offer::isShadowSafe).map(Offer::pattern).toList();
  }

  void start(double nowMs) {
    helloAtMs = nowMs;
    heartbeatAtMs = nowMs + heartbeatEveryMs();
  }

  /**
   * Begins to send hello again. The pause since the last hello is at least that of the first retry.
   */
  void requestHello(double nowMs) {
    helloWaitMs = Limits.HELLO_RETRY_MS;
    double soonestMs = helloSentMs + spread(Limits.HELLO_RETRY_MS, Limits.HELLO_JITTER);
    helloAtMs = Math.min(helloAtMs, Math.max(nowMs, soonestMs));
  }

  /**
   * Begins to send hello again after this pause, because this broker keeps ending the session.
   * Another broker that has no session either does not wait for it.
   */
  void requestHelloAfter(double waitMs, BrokerPeer peer, double nowMs) {
    helloWaitMs = Limits.HELLO_RETRY_MS;
    double atMs = nowMs + waitMs;
    boolean othersAreOpen = true;
    for (BrokerPeer other : brokers) {
      othersAreOpen &= other == peer || other.session != null;
    }
    helloAtMs = othersAreOpen ? atMs : Math.min(helloAtMs, atMs);
  }

  /** Sends a heartbeat with the next actions, because the brokers must be informed at once. */
  void requestHeartbeat(double nowMs) {
    heartbeatAtMs = nowMs;
  }

  /**
   * Sends a heartbeat with the next actions, because a broker is no longer idle, and its share was
   * lent. The remainder of the split does not rotate with it.
   */
  void recallCredit(double nowMs) {
    mayMoveCredit = true;
    requestCredit(nowMs);
  }

  /**
   * Sends a heartbeat with the next actions, because places have become free for another broker. At
   * most once between two other heartbeats: each ack of one could cause the next.
   */
  void moveCredit(double nowMs) {
    if (mayMoveCredit) {
      mayMoveCredit = false;
      requestCredit(nowMs);
    }
  }

  private void requestCredit(double nowMs) {
    if (heartbeatAtMs > nowMs) {
      heartbeatAtMs = nowMs;
      isForCredit = true;
    }
  }

  /**
   * Stops sending hello, if every broker has answered a hello that was sent after its last drop or
   * {@code here}.
   */
  void stopHelloIfWelcomed() {
    if (brokers.size() == 0) {
      return;
    }
    for (BrokerPeer peer : brokers) {
      if (peer.session == null || peer.nAfter >= helloN) {
        return;
      }
    }
    helloAtMs = Session.NEVER;
  }

  void hello(double nowMs) {
    long n = out.nextTimedN(nowMs);
    Credit.OfferedToAll offered = credit.offerAll(n, nowMs);
    out.sendToAll(
        new Hello(
            n,
            brokers.nextNumbers(),
            brokers.sessions(),
            handlers,
            shadowSafe,
            config.labels,
            config.slots,
            config.queueMax(),
            offered.free(),
            offered.slotsFree(),
            holdings.report(nowMs),
            config.heartbeatMs,
            config.lang,
            config.sdk,
            config.handlerVersion,
            config.host,
            config.pid,
            config.pidStarted,
            config.proof,
            config.maxMessageBytes));
    helloSentMs = nowMs;
    helloN = n;
    helloAtMs = nowMs + spread(helloWaitMs, Limits.HELLO_JITTER);
    helloWaitMs = Math.min(helloWaitMs * 2, Limits.HELLO_RETRY_MAX_MS);
    stopHelloIfWelcomed();
  }

  /** Sends a heartbeat; while draining, also a bye. */
  void heartbeat(double nowMs) {
    long n = out.nextTimedN(nowMs);
    Credit.OfferedToAll offered = credit.offerAll(n, nowMs);
    out.sendToAll(
        new Heartbeat(
            n,
            brokers.nextNumbers(),
            brokers.sessions(),
            offered.free(),
            offered.slotsFree(),
            holdings.report(nowMs)));
    if (credit.isDraining) {
      out.sendToAll(new Bye(out.nextTimedN(nowMs)));
    }
    heartbeatAtMs = nowMs + spread(heartbeatEveryMs(), Limits.HEARTBEAT_JITTER);
    mayMoveCredit |= !isForCredit;
    isForCredit = false;
  }

  private double heartbeatEveryMs() {
    long every = Math.min(config.heartbeatMs, Limits.LEASE_MS);
    for (BrokerPeer peer : brokers) {
      if (peer.session != null) {
        every = Math.min(every, peer.heartbeatMs);
      }
    }
    return Math.max(Limits.HEARTBEAT_MIN_MS, every);
  }

  private double spread(double ms, double jitter) {
    return ms * (1 + jitter * (2 * random.getAsDouble() - 1));
  }
}
