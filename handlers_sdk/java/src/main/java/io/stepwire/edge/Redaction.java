package io.stepwire.edge;

import java.util.Map;

/**
 * Removes the values of secrets from texts that leave this process: errors, traces, progress and
 * log records. The values of all secrets that this process has resolved count, whichever run a text
 * comes from.
 */
public final class Redaction {
  private static final Redactor OF_PROCESS = new Redactor();

  private Redaction() {}

  /** The text with the names of secrets in the place of their values; null stays null. */
  public static String redact(String text) {
    return OF_PROCESS.redact(text);
  }

  /** Removes these values, by the names of their secrets, from all texts from now on. */
  static void remember(Map<String, String> values) {
    values.forEach(OF_PROCESS::add);
  }
}
