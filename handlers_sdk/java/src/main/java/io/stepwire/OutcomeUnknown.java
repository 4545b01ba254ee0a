package io.stepwire;

/**
 * The effect may or may not have happened, and the handler cannot find out.
 *
 * <p>The broker retries an at_least_once step, and holds an at_most_once step for an operator.
 */
public class OutcomeUnknown extends StepError {
  /** The code on the wire. */
  public static final String CODE = "outcome_unknown";

  private static final long serialVersionUID = 1L;

  public OutcomeUnknown(String message) {
    this(message, null);
  }

  /** {@code category} may be null. */
  public OutcomeUnknown(String message, String category) {
    super(message, CODE, category);
  }

  @Override
  public Boolean retryable() {
    return null;
  }
}
