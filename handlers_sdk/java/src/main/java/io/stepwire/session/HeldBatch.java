package io.stepwire.session;

import io.stepwire.protocol.Result;
import java.util.ArrayList;
import java.util.List;

/** The steps of one message. Their results are reported together if possible. */
final class HeldBatch {
  private static final int DIGITS_MAX = 16;

  /** A delivery that has ended, and its result. */
  record Done(HeldDelivery held, Result result) {}

  final String id;
  final String session;
  final long number;
  int open; // accepted steps that have not ended
  int unsent; // steps without a sent result
  List<Done> ready = new ArrayList<>(); // finished, and in no message yet

  HeldBatch(String id, String session, int size) {
    this.id = id;
    this.session = session;
    this.number = numberOf(id);
    this.unsent = size;
  }

  /**
   * The increasing number n of {@code batch_<nonce>_<n>}. An id of another form has -1, and is
   * never refused as stale by its number.
   */
  private static long numberOf(String batchId) {
    String digits = batchId.substring(batchId.lastIndexOf('_') + 1);
    if (digits.isEmpty() || digits.length() > DIGITS_MAX) {
      return -1;
    }
    for (int i = 0; i < digits.length(); i++) {
      if (digits.charAt(i) < '0' || digits.charAt(i) > '9') {
        return -1;
      }
    }
    return Long.parseLong(digits);
  }
}
