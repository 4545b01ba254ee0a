package io.stepwire;

/** The base of every exception of the SDK. */
public class StepwireError extends RuntimeException {
  private static final long serialVersionUID = 1L;

  public StepwireError(String message) {
    super(message);
  }

  public StepwireError(String message, Throwable cause) {
    super(message, cause);
  }
}
