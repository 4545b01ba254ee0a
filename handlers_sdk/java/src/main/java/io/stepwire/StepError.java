package io.stepwire;

/**
 * The step failed, with a code and a category from the handler. The step's policy decides about a
 * retry, as for any exception.
 *
 * <p>A handler may throw any exception. An ordinary one is a failure that the step's policy may
 * retry; a StepError is more precise. The category {@code unavailable} tells the broker that the
 * handler cannot reach a resource that it needs.
 */
public class StepError extends StepwireError {
  private static final long serialVersionUID = 1L;

  private final String code;
  private final String category;

  public StepError(String message) {
    this(message, null, null);
  }

  public StepError(String message, String code) {
    this(message, code, null);
  }

  /** {@code code} and {@code category} may be null. */
  public StepError(String message, String code, String category) {
    super(message);
    this.code = code;
    this.category = category;
  }

  public String code() {
    return code;
  }

  public String category() {
    return category;
  }

  /** Whether the step may be retried; null if the broker's rules decide. */
  public Boolean retryable() {
    return true;
  }

  /** The earliest time of a retry, in milliseconds from now; null without one. */
  public Long retryAfterMs() {
    return null;
  }
}
