package io.stepwire;

/** Finds the values of secrets. Handlers of several threads call it at the same time. */
@FunctionalInterface
public interface SecretResolver {
  /**
   * The value of the secret with this name; null if there is none. After an exception, the step
   * fails with the category {@code unavailable}.
   */
  String valueOf(String name) throws Exception;
}
