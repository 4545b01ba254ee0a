package io.stepwire;

/** A worker or a handler cannot be set up as requested. The message names the setting at fault. */
public class ConfigurationError extends StepwireError {
  private static final long serialVersionUID = 1L;

  public ConfigurationError(String message) {
    super(message);
  }
}
