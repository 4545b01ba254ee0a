package io.stepwire;

import java.time.Duration;

/** The step failed, and must not be retried before {@code after} has passed. */
public class Retry extends StepError {
  private static final long serialVersionUID = 1L;
  private static final Duration AFTER_MAX = Duration.ofDays(10 * 365);

  private final long afterMs;

  public Retry(String message, Duration after) {
    this(message, after, null, null);
  }

  /** {@code code} and {@code category} may be null. */
  public Retry(String message, Duration after, String code, String category) {
    super(message, code, category);
    if (after.isNegative() || after.compareTo(AFTER_MAX) > 0) {
      throw new ConfigurationError("Retry(" + after + "): 0 or more, at most ten years");
    }
    afterMs = after.toMillis();
  }

  @Override
  public Long retryAfterMs() {
    return afterMs;
  }
}
