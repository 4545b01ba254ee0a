package io.stepwire.edge;

import io.stepwire.SecretResolver;
import io.stepwire.Texts;
import io.stepwire.protocol.Json;
import io.stepwire.protocol.Raw;
import io.stepwire.protocol.StepRequest;
import java.util.Map;

/**
 * The source of a worker's secrets, and the replacement of references in a step.
 *
 * <p>A reference counts in {@code handler_config}, and in the input of the handler: {@code input}
 * if the workflow defines one, otherwise the task's context. Outputs of other steps are data: a
 * reference in {@code previous_results} stays a reference.
 */
final class SecretValues {
  static final String DIRECTORY = "STEPWIRE_SECRETS_DIR";

  private final SecretResolver resolver;

  /** {@code resolver}: null for a worker without secrets. */
  SecretValues(SecretResolver resolver) {
    this.resolver = resolver == null ? SecretValues::noSource : resolver;
  }

  /**
   * The step with the value in the place of each reference; the values are added to {@code values}.
   * Throws {@link SecretUnavailable}.
   *
   * <p>Each secret is read once for a step, so its values agree with each other, and again for the
   * next step, so a rotated secret is used at once.
   */
  StepRequest resolved(StepRequest step, Map<String, String> values) {
    Raw config = replaced(step.handlerConfig(), values);
    boolean hasInput = step.input() != null;
    Raw context = hasInput ? step.taskContext() : replaced(step.taskContext(), values);
    Raw input = hasInput ? replaced(step.input(), values) : null;
    Redaction.remember(values);
    return step.withData(config, context, step.previousResults(), input);
  }

  private Raw replaced(Raw raw, Map<String, String> values) {
    if (!raw.mayNeedOpening()) {
      return raw;
    }
    Object value =
        SecretReferences.replaced(
            raw.decode(), name -> values.computeIfAbsent(name, this::valueOf));
    return Raw.of(Json.encode(value));
  }

  /** The text of the resolver's own error may hold anything. */
  String valueOf(String name) {
    String secret = "secret " + Texts.repr(name);
    String value;
    try {
      value = resolver.valueOf(name);
    } catch (SecretUnavailable known) {
      throw known;
    } catch (Exception | StackOverflowError | LinkageError fault) {
      String type = fault.getClass().getName();
      throw new SecretUnavailable(
          secret
              + ": the resolver of this worker failed with "
              + type.substring(type.lastIndexOf('.') + 1),
          "unavailable");
    }
    if (value == null) {
      throw new SecretUnavailable(secret + ": the resolver of this worker does not know it");
    }
    if (value.isEmpty()) {
      throw new SecretUnavailable(secret + ": the resolver of this worker returned no text");
    }
    return value;
  }

  /** The output with the names of secrets in the place of these values, if they are long enough. */
  static byte[] withoutValues(byte[] output, Map<String, String> values) {
    Redactor redactor = new Redactor();
    values.forEach(
        (name, value) -> {
          if (value.codePointCount(0, value.length()) >= Redactor.OUTPUT_CHARS_MIN) {
            redactor.add(name, value);
          }
        });
    if (!redactor.isActive()) {
      return output;
    }
    return Json.encode(redactor.redacted(Json.parse(output)));
  }

  private static String noSource(String name) {
    throw new SecretUnavailable(
        "secret "
            + Texts.repr(name)
            + ": this worker reads no secrets: set "
            + DIRECTORY
            + " to a directory of files, or pass Worker.builder().secrets(...)");
  }
}
