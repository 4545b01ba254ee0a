package io.stepwire.session;

import io.stepwire.protocol.FromBroker.Ack;
import io.stepwire.protocol.FromBroker.Refused;
import io.stepwire.protocol.FromWorker.Results;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.Result;
import io.stepwire.session.Action.Level;
import io.stepwire.session.HeldBatch.Done;
import io.stepwire.session.HeldDelivery.State;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Sends the results of finished runs, and ends their deliveries when a broker acknowledges or
 * refuses the message.
 *
 * <p>A message holds results of one batch, so a result waits at most HOLD_MS for others of its
 * batch: until the batch is whole, or nothing runs, or the observed pace promises none in that
 * time.
 */
final class ResultsReporting {
  private static final double HOLD_MS = 1.0;

  /** With these codes the broker does not refuse the content, so other content would not help. */
  private static final Set<String> HOPELESS =
      Set.of("wrong_batch", "wrong_sender", "unknown_delivery", "unknown_session", "unknown_type");

  double sendAtMs = Session.NEVER;
  private final HeldDeliveries holdings;
  private final Credit credit;
  private final Intake intake;
  private final ResultsOutbox outbox;
  private final Outgoing out;
  private Set<HeldBatch> ready = new LinkedHashSet<>(); // batches with results that are not sent
  private List<HeldBatch> whole = new ArrayList<>(); // those whose steps have all ended
  private long rid;

  ResultsReporting(
      HeldDeliveries holdings, Credit credit, Intake intake, ResultsOutbox outbox, Outgoing out) {
    this.holdings = holdings;
    this.credit = credit;
    this.intake = intake;
    this.outbox = outbox;
    this.out = out;
  }

  void add(HeldDelivery held, Result result, double nowMs) {
    HeldBatch batch = held.batch;
    batch.ready.add(new Done(held, result));
    batch.open--;
    if (batch.open == 0) {
      whole.add(batch);
    }
    ready.add(batch);
    if (sendAtMs == Session.NEVER) {
      sendAtMs = nowMs + HOLD_MS;
    }
  }

  /** True if all steps of a batch have ended, so its results can be sent. */
  boolean hasWhole() {
    return !whole.isEmpty();
  }

  /**
   * True if results must be sent now. {@code runs}: the number of steps that could still add to
   * them.
   */
  boolean isDue(double nowMs, int runs) {
    if (sendAtMs == Session.NEVER) {
      return false;
    }
    return nowMs >= sendAtMs
        || runs == 0
        || hasWhole()
        || holdings.pace.stepsIn(HOLD_MS, nowMs) < 1; // none is expected in time
  }

  /**
   * Sends the results of whole batches; all results, if none is expected in time. Called if {@link
   * #isDue}.
   */
  void sendDue(double nowMs, int runs) {
    List<HeldBatch> complete = whole;
    whole = new ArrayList<>();
    Iterable<HeldBatch> due;
    if (nowMs < sendAtMs && runs > 0 && holdings.pace.stepsIn(HOLD_MS, nowMs) >= 1) {
      complete.forEach(ready::remove);
      due = complete;
    } else {
      due = ready;
      ready = new LinkedHashSet<>();
    }
    if (ready.isEmpty()) {
      sendAtMs = Session.NEVER;
    }
    for (HeldBatch batch : due) {
      List<Done> done = batch.ready.stream().filter(each -> isDone(each.held())).toList();
      batch.ready = new ArrayList<>();
      Set<BrokerPeer> owners = new LinkedHashSet<>();
      done.forEach(each -> owners.add(each.held().peer));
      for (BrokerPeer peer : owners) {
        List<Done> own =
            owners.size() == 1
                ? done
                : done.stream().filter(each -> each.held().peer == peer).toList();
        for (List<Done> part : Outgoing.parts(own)) {
          send(peer, batch, part, nowMs, false);
        }
      }
    }
  }

  private static boolean isDone(HeldDelivery held) {
    return held.state == State.DONE;
  }

  void onAck(Ack message, double nowMs) {
    for (long each : message.rids()) {
      ResultsMessage acked = outbox.remove(each);
      if (acked != null) {
        acked.done.forEach(held -> holdings.bury(held, nowMs));
      }
    }
  }

  void onRefused(Refused message, double nowMs) {
    out.log(
        Level.ERROR,
        "message_refused",
        "broker",
        message.broker(),
        "refused",
        message.refused(),
        "code",
        message.code(),
        "message",
        message.message());
    ResultsMessage refused = outbox.remove(message.rid());
    if (refused == null) {
      return;
    }
    if (refused.isReplacement || HOPELESS.contains(message.code())) {
      refused.done.forEach(held -> holdings.bury(held, nowMs));
      return;
    }
    // The broker will never accept these results. If they were only dropped, the steps would run
    // again.
    for (HeldDelivery held : refused.done) {
      String text = message.code() + ": " + message.message();
      Result failure = Failures.ofSdk(held, "result_refused", text);
      send(refused.peer, refused.batch, List.of(new Done(held, failure)), nowMs, true);
    }
  }

  /**
   * Moves results to the broker that now owns their deliveries. Results for the previous owner get
   * a separate message.
   */
  void changeOwner(
      ResultsMessage message, List<HeldDelivery> adopted, BrokerPeer peer, double nowMs) {
    Set<HeldDelivery> moved = new HashSet<>(adopted);
    List<HeldDelivery> rest = message.done.stream().filter(held -> !moved.contains(held)).toList();
    if (rest.isEmpty()) {
      message.peer = peer;
      return;
    }
    Map<Item, Result> resultOf = new HashMap<>();
    message.content.results().forEach(result -> resultOf.put(result.item(), result));
    outbox.remove(message.rid());
    boolean isReplacement = message.isReplacement;
    send(message.peer, message.batch, paired(rest, resultOf), nowMs, isReplacement);
    send(peer, message.batch, paired(adopted, resultOf), nowMs, isReplacement);
  }

  private static List<Done> paired(List<HeldDelivery> deliveries, Map<Item, Result> resultOf) {
    return deliveries.stream().map(held -> new Done(held, resultOf.get(held.item))).toList();
  }

  /** Sends one results message, or two halves if the broker does not accept its size. */
  private void send(
      BrokerPeer peer, HeldBatch batch, List<Done> done, double nowMs, boolean isReplacement) {
    String session = peer.session == null ? batch.session : peer.session;
    String deployment = peer.deployment == null ? "" : peer.deployment;
    Credit.Offered offered = credit.offer(peer, nowMs);
    Results message =
        new Results(
            session,
            deployment,
            batch.id,
            rid + 1,
            out.nextN(),
            offered.free(),
            offered.slotsFree(),
            done.stream().map(Done::result).toList());
    byte[] frame = out.frame(peer.topic, message);
    int size = frame.length - peer.topic.length;
    if (size > peer.bytesMax && splitOrShorten(peer, batch, done, size, nowMs, isReplacement)) {
      return;
    }
    rid++;
    List<HeldDelivery> deliveries = done.stream().map(Done::held).toList();
    ResultsMessage kept =
        new ResultsMessage(message, size, peer, batch, deliveries, nowMs, isReplacement);
    for (HeldDelivery held : deliveries) {
      batch.unsent -= held.message == null ? 1 : 0; // a replacement counts once
      held.message = kept;
    }
    outbox.send(kept, frame);
    if (batch.unsent == 0) {
      intake.cancelAccept(peer, session, batch.id);
    }
  }

  /**
   * Sends results that are too large for one message in another form. False if the message must be
   * sent as it is.
   */
  private boolean splitOrShorten(
      BrokerPeer peer,
      HeldBatch batch,
      List<Done> done,
      int size,
      double nowMs,
      boolean isReplacement) {
    if (done.size() > 1) {
      int half = done.size() / 2;
      send(peer, batch, done.subList(0, half), nowMs, isReplacement);
      send(peer, batch, done.subList(half, done.size()), nowMs, isReplacement);
      return true;
    }
    if (isReplacement) {
      return false;
    }
    HeldDelivery held = done.get(0).held();
    Result result = done.get(0).result();
    if (result.metadata() != null && result.metadata().stderr() != null) {
      Result shorter = result.withMetadata(result.metadata().withoutStderr());
      send(peer, batch, List.of(new Done(held, shorter)), nowMs, false);
      return true;
    }
    Result failure = Failures.tooLarge(held, size, peer.bytesMax);
    out.add(new Action.ResultTooLarge(held.run.step(), failure));
    send(peer, batch, List.of(new Done(held, failure)), nowMs, true);
    return true;
  }
}
