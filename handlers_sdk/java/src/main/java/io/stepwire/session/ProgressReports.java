package io.stepwire.session;

import io.stepwire.protocol.FromWorker.Progress;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.ProgressItem;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Progress reports: only the latest of each run is sent, at most five times a second. */
final class ProgressReports {
  private static final double PROGRESS_EVERY_MS = 200;

  double sendAtMs = Session.NEVER;
  private final HeldDeliveries holdings;
  private final Outgoing out;
  private Map<Item, ProgressItem> latest = new LinkedHashMap<>();
  private double sentMs = -Session.NEVER;

  ProgressReports(HeldDeliveries holdings, Outgoing out) {
    this.holdings = holdings;
    this.out = out;
  }

  void add(ProgressItem report, double nowMs) {
    latest.put(report.item(), report);
    sendAtMs = Math.max(nowMs, sentMs + PROGRESS_EVERY_MS);
  }

  void forget(HeldDelivery held) {
    latest.remove(held.item);
  }

  void send(double nowMs) {
    sendAtMs = Session.NEVER;
    sentMs = nowMs;
    Map<BrokerPeer, List<ProgressItem>> byPeer = new LinkedHashMap<>();
    for (ProgressItem report : latest.values()) {
      HeldDelivery held = holdings.get(report.item());
      if (held != null && held.peer.session != null) {
        byPeer.computeIfAbsent(held.peer, peer -> new ArrayList<>()).add(report);
      }
    }
    latest = new LinkedHashMap<>();
    byPeer.forEach(
        (peer, reports) -> {
          for (List<ProgressItem> part : Outgoing.parts(reports)) {
            out.sendTo(peer, new Progress(peer.session, part));
          }
        });
  }
}
