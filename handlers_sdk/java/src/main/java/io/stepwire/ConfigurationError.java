package io.stepwire;

import java.util.Arrays;

/**
 * A worker or a handler cannot be set up as requested. The message names the setting at fault. The
 * stack trace begins at the program's own line: the sentence says what to do there.
 */
public class ConfigurationError extends StepwireError {
  private static final long serialVersionUID = 1L;

  public ConfigurationError(String message) {
    super(message);
    setStackTrace(
        Arrays.stream(getStackTrace())
            .filter(frame -> !frame.getClassName().startsWith("io.stepwire."))
            .toArray(StackTraceElement[]::new));
  }
}
