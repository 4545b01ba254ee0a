package io.stepwire.session;

import io.stepwire.protocol.FromWorker.Results;
import io.stepwire.protocol.Limits;
import java.util.List;

/** A results message that no broker has acknowledged yet. */
final class ResultsMessage {
  final HeldBatch batch;
  final List<HeldDelivery> done;
  final boolean isReplacement; // carries an error in place of a result that no broker accepts
  Results content;
  BrokerPeer peer;
  int bytes;
  int tries = 1;
  double waitMs = Limits.RESULTS_RETRANSMIT_MS;
  double atMs;

  ResultsMessage(
      Results content,
      int bytes,
      BrokerPeer peer,
      HeldBatch batch,
      List<HeldDelivery> done,
      double nowMs,
      boolean isReplacement) {
    this.content = content;
    this.bytes = bytes;
    this.peer = peer;
    this.batch = batch;
    this.done = done;
    this.isReplacement = isReplacement;
    this.atMs = nowMs + waitMs;
  }

  long rid() {
    return content.rid();
  }
}
