package io.stepwire.session;

import io.stepwire.protocol.ErrorDetail;
import io.stepwire.protocol.Result;
import java.math.BigDecimal;
import java.math.RoundingMode;

/** The results of steps that ran, but whose own result cannot be delivered or proves nothing. */
final class Failures {
  private static final String OUTCOME_UNKNOWN = "outcome_unknown";
  private static final double MIB = 1024 * 1024;

  private Failures() {}

  /**
   * The result without a verdict on an at_most_once step: a failure after a request to stop does
   * not prove that the step had no effect.
   */
  static Result withoutVerdict(HeldDelivery held, Result result) {
    if (!held.isAtMostOnce || result.error() == null) {
      return result;
    }
    return result.withError(result.error().withCode(OUTCOME_UNKNOWN));
  }

  static Result tooLarge(HeldDelivery held, long messageBytes, long bytesMax) {
    String text =
        "the output has "
            + size(messageBytes)
            + "; the limit is "
            + size(bytesMax)
            + ": store it elsewhere and return a reference";
    return ofSdk(held, "too_large", text);
  }

  /** The result of a step that ran, but whose result cannot be delivered. */
  static Result ofSdk(HeldDelivery held, String code, String text) {
    ErrorDetail error =
        held.isAtMostOnce
            ? ErrorDetail.of(code + ": " + text, OUTCOME_UNKNOWN, null)
            : ErrorDetail.of(text, code, false);
    return Result.without(held.item, Result.Status.ERROR, error, null);
  }

  /** Rounded up, so that a size above a limit also reads as one. */
  private static String size(long bytes) {
    if (bytes < MIB) {
      return bytes + " bytes";
    }
    BigDecimal mebibytes = BigDecimal.valueOf(Math.ceil(bytes / MIB * 10) / 10);
    return mebibytes.setScale(1, RoundingMode.HALF_UP).stripTrailingZeros().toPlainString()
        + " MiB";
  }
}
