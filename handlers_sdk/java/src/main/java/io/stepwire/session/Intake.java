package io.stepwire.session;

import io.stepwire.protocol.Codec;
import io.stepwire.protocol.FromBroker.Steps;
import io.stepwire.protocol.FromWorker.Accept;
import io.stepwire.protocol.FromWorker.Refuse;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.StepRequest;
import io.stepwire.session.Action.Level;
import io.stepwire.session.HeldDelivery.State;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * {@code steps} messages, and their answers: {@code accept} and {@code refuse}. A repeated {@code
 * steps} message is answered again, or the broker would resend it forever.
 */
final class Intake {
  private record BatchKey(BrokerPeer peer, String session, String batchId) {}

  private record Owner(BrokerPeer peer, String batchId) {}

  double acceptAtMs = Session.NEVER;
  private final Offers offers;
  private final int acceptDelayMs;
  private final Brokers brokers;
  private final HeldDeliveries holdings;
  private final Credit credit;
  private final ResultsOutbox outbox;
  private final Outgoing out;

  /** When to accept a batch. Two brokers may have sessions, and batches, of the same name. */
  private final Map<BatchKey, Double> unaccepted = new LinkedHashMap<>();

  Intake(
      Offers offers,
      int acceptDelayMs,
      Brokers brokers,
      HeldDeliveries holdings,
      Credit credit,
      ResultsOutbox outbox,
      Outgoing out) {
    this.offers = offers;
    this.acceptDelayMs = acceptDelayMs;
    this.brokers = brokers;
    this.holdings = holdings;
    this.credit = credit;
    this.outbox = outbox;
    this.out = out;
  }

  /** {@code size}: the bytes of the message. */
  void onSteps(BrokerPeer peer, Steps message, int size, double nowMs) {
    List<StepRequest> steps = message.steps();
    String session = message.session();
    String batchId = message.batchId();
    peer.promises.use(steps.size());
    if (!isMajorVersion2(message.protocolVersion())) {
      List<Item> items = steps.stream().map(StepRequest::item).toList();
      refuseUnread(peer, session, batchId, items, "bad_message", nowMs);
      return;
    }
    HeldBatch batch = new HeldBatch(batchId, session, steps.size());
    credit.noteSize((double) size / Math.max(1, steps.size()));
    Map<String, List<Item>> refused = new LinkedHashMap<>();
    boolean isAccepted = false;
    boolean isRepeated = false;
    int places = credit.places();
    peer.stepsMs = nowMs;
    for (StepRequest step : steps) {
      Item item = step.item();
      HeldDelivery held = holdings.get(item);
      if (held != null) {
        isRepeated |= answerAgain(peer, held, refused, nowMs);
        continue;
      }
      boolean isBelowFloor = batch.number >= 0 && batch.number <= peer.floor;
      String code;
      int offer;
      if (isBelowFloor || holdings.tombstones.contains(item)) {
        code = "stale";
      } else if ((offer = offers.find(step.handlerClass())) < 0) {
        code = "unknown_handler";
      } else if (credit.isDraining) {
        code = "draining";
      } else if (places <= 0 || holdings.isOrphan(item)) {
        code = "busy";
      } else {
        holdings.add(new HeldDelivery(step, peer, batch, offer, nowMs));
        isAccepted = true;
        places--;
        continue;
      }
      refused.computeIfAbsent(code, each -> new ArrayList<>()).add(item);
      if (!code.equals("stale")) {
        holdings.tombstones.add(item, peer, batch, nowMs);
      }
    }
    if (isAccepted || isRepeated) {
      double atMs = isRepeated ? nowMs : nowMs + acceptDelayMs;
      unaccepted.put(new BatchKey(peer, session, batchId), atMs);
      acceptAtMs = Math.min(acceptAtMs, atMs);
    }
    refused.forEach((code, items) -> refuse(peer, batchId, items, code, nowMs, false));
  }

  private static boolean isMajorVersion2(String version) {
    int point = version.indexOf('.');
    return (point < 0 ? version : version.substring(0, point)).equals("2");
  }

  /** Sends no accept for this batch, because its results were sent and are an answer, too. */
  void cancelAccept(BrokerPeer peer, String session, String batchId) {
    unaccepted.remove(new BatchKey(peer, session, batchId));
  }

  void acceptDue(double nowMs) {
    double atMs = Session.NEVER;
    Iterator<Map.Entry<BatchKey, Double>> entries = unaccepted.entrySet().iterator();
    while (entries.hasNext()) {
      Map.Entry<BatchKey, Double> entry = entries.next();
      double dueMs = entry.getValue();
      if (dueMs > nowMs) {
        atMs = Math.min(atMs, dueMs);
        continue;
      }
      entries.remove();
      BatchKey key = entry.getKey();
      if (key.session.equals(key.peer.session)) {
        Credit.Offered offered = credit.offer(key.peer, nowMs);
        out.sendTo(
            key.peer, new Accept(key.session, key.batchId, offered.free(), offered.slotsFree()));
      }
    }
    acceptAtMs = atMs;
  }

  /**
   * Ends these deliveries, whose runs have not begun and never will, and returns the steps to their
   * brokers.
   */
  void giveBack(List<HeldDelivery> withdrawn, String code, double nowMs) {
    Map<Owner, List<Item>> byBatch = new LinkedHashMap<>();
    for (HeldDelivery held : withdrawn) {
      Owner owner = new Owner(held.peer, held.batch.id);
      byBatch.computeIfAbsent(owner, each -> new ArrayList<>()).add(held.item);
      holdings.bury(held, nowMs);
    }
    byBatch.forEach((owner, items) -> refuse(owner.peer, owner.batchId, items, code, nowMs, true));
  }

  /** Refuses these items. {@code isReturn}: they were accepted before. */
  private void refuse(
      BrokerPeer peer,
      String batchId,
      List<Item> items,
      String code,
      double nowMs,
      boolean isReturn) {
    if (peer.session == null) {
      return;
    }
    Credit.Offered offered = credit.offer(peer, nowMs);
    // A broker may list an item twice, a worker may not.
    List<Item> distinct = items.stream().distinct().toList();
    for (List<Item> part : Outgoing.parts(distinct)) {
      out.sendTo(
          peer, new Refuse(peer.session, batchId, part, code, offered.free(), offered.slotsFree()));
    }
    if (!code.equals("stale")) {
      // Returns keep the queues short, and many may be sent in a second: no operator has to act.
      Level level = isReturn ? Level.DEBUG : code.equals("draining") ? Level.INFO : Level.WARNING;
      out.log(
          level,
          "steps_refused",
          "broker",
          peer.id,
          "batch_id",
          batchId,
          "code",
          code,
          "steps",
          items.size());
    }
  }

  /**
   * Refuses the steps of a message that cannot be read, or its broker would resend it forever. Its
   * JSON begins at {@code from}.
   */
  void onUnreadable(byte[] frame, int from, String code, String why, double nowMs) {
    out.log(Level.ERROR, "message_unreadable", "code", code, "why", why);
    Codec.Remains remains = Codec.remainsOf(frame, from);
    BrokerPeer peer = remains == null ? null : brokers.get(remains.broker());
    if (peer != null && remains.session().equals(peer.session)) {
      refuseUnread(peer, remains.session(), remains.batchId(), remains.items(), code, nowMs);
    }
  }

  /** Answers a delivery that is held already. True: its batch is accepted again. */
  private boolean answerAgain(
      BrokerPeer peer, HeldDelivery held, Map<String, List<Item>> refused, double nowMs) {
    if (held.peer != peer) { // another broker has adopted the delivery meanwhile
      refused.computeIfAbsent("stale", each -> new ArrayList<>()).add(held.item);
    } else if (held.message != null) {
      outbox.hasten(held.message, nowMs);
    } else if (held.state != State.DONE) {
      return true;
    }
    return false;
  }

  private void refuseUnread(
      BrokerPeer peer,
      String session,
      String batchId,
      List<Item> items,
      String code,
      double nowMs) {
    holdings.buryUnread(peer, new HeldBatch(batchId, session, items.size()), items, nowMs);
    refuse(peer, batchId, items, code, nowMs, false);
  }
}
