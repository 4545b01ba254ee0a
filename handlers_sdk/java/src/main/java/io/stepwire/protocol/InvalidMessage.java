package io.stepwire.protocol;

import io.stepwire.StepwireError;

/**
 * A message or a value that is refused. {@link #code()} is a code of SPEC.md, section 18; the
 * message names the place and the reason.
 */
public final class InvalidMessage extends StepwireError {
  private static final long serialVersionUID = 1L;

  private final String code;
  private final String reason;

  public InvalidMessage(String code, String message) {
    super(code + ": " + message);
    this.code = code;
    this.reason = message;
  }

  /** The message without the code. */
  public String reason() {
    return reason;
  }

  public String code() {
    return code;
  }
}
