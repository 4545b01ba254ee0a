package io.stepwire.edge;

import io.stepwire.StepwireError;

/**
 * The secret has no value that may be used. The message never holds the value. The category is
 * {@code unavailable} if the service that holds the secrets has failed, otherwise null.
 */
final class SecretUnavailable extends StepwireError {
  private static final long serialVersionUID = 1L;

  private final String category;

  SecretUnavailable(String message) {
    this(message, null);
  }

  SecretUnavailable(String message, String category) {
    super(message);
    this.category = category;
  }

  String category() {
    return category;
  }
}
