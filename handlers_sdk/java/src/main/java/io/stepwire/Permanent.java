package io.stepwire;

/** The step failed, and a retry cannot help: a declined card, an address that does not exist. */
public class Permanent extends StepError {
  private static final long serialVersionUID = 1L;

  public Permanent(String message) {
    super(message);
  }

  public Permanent(String message, String code) {
    super(message, code);
  }

  /** {@code code} and {@code category} may be null. */
  public Permanent(String message, String code, String category) {
    super(message, code, category);
  }

  @Override
  public Boolean retryable() {
    return false;
  }
}
