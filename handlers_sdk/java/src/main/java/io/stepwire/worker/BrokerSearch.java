package io.stepwire.worker;

import io.stepwire.CurveKeys;
import io.stepwire.session.Action.Level;
import io.stepwire.session.Link;
import io.stepwire.session.Session;
import java.util.List;
import java.util.Map;

/**
 * Reports that no broker answers: after three seconds, then at growing intervals. Used by the
 * socket thread only.
 */
final class BrokerSearch {
  private static final double[] AFTER_MS = {3_000, 10_000, 30_000, 60_000};
  private static final double EVERY_MS = 300_000; // after those

  double reportAtMs = Session.NEVER;
  private final WorkerEvents events;
  private final CurveKeys keys;
  private double sinceMs;
  private int reports;

  /** {@code keys} is null without CURVE. */
  BrokerSearch(WorkerEvents events, CurveKeys keys) {
    this.events = events;
    this.keys = keys;
  }

  /**
   * Notes the links without a session, after each change and at {@code reportAtMs}. Reports the
   * first when due.
   */
  void update(List<Link> closed, double nowMs) {
    if (closed.isEmpty()) {
      reportAtMs = Session.NEVER;
      reports = 0;
      return;
    }
    if (reportAtMs == Session.NEVER) {
      sinceMs = nowMs;
      reportAtMs = nowMs + AFTER_MS[0];
    }
    if (nowMs < reportAtMs) {
      return;
    }
    reports++;
    double waits = reports < AFTER_MS.length ? AFTER_MS[reports] : nowMs - sinceMs + EVERY_MS;
    reportAtMs = sinceMs + waits;
    long seconds = Math.round((nowMs - sinceMs) / 1000);
    // In a thread, because resolving a name or connecting can take seconds, and heartbeats must
    // continue.
    Thread thread = new Thread(() -> report(closed.get(0), seconds), "stepwire-search");
    thread.setDaemon(true);
    thread.start();
  }

  private void report(Link link, long seconds) {
    Reachability.Diagnosis found = Reachability.diagnose(link, keys);
    events.log(
        Level.WARNING,
        "no_broker",
        Map.of("endpoint", found.endpoint(), "reason", found.reason(), "seconds", seconds));
  }
}
