package io.stepwire.edge;

import io.stepwire.protocol.ErrorDetail;
import io.stepwire.protocol.InvalidMessage;
import io.stepwire.protocol.Json;
import io.stepwire.protocol.Raw;
import io.stepwire.protocol.StepRequest;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/**
 * Sealed steps at a worker: the handler works with plaintext, and only sealed outputs and errors
 * leave the worker. A step is sealed if its context is. The broker stores no unsealed output of
 * such a step.
 */
final class SealedSteps {
  private static final String ERROR_MESSAGE =
      "the error is sealed: stepwire task show --unseal prints it";
  private static final int ERROR_BYTES_MAX = 5_000; // sealed, it fits into the 8 KiB of a broker
  private static final int MESSAGE_CHARS_MAX = 1_000;
  private static final Pattern WORD = Pattern.compile("[A-Za-z0-9_.:-]{1,64}");

  private SealedSteps() {}

  /** The task for which the context of this step was sealed; null if it is not sealed. */
  static SealedTask taskOf(StepRequest step) {
    Object context = step.taskContext().mayNeedOpening() ? step.taskContext().decode() : null;
    if (!SealKeys.isSealed(context)) {
      return null;
    }
    if (((Map<?, ?>) context).get("task") instanceof Map<?, ?> task
        && task.get("namespace") instanceof String namespace
        && task.get("workflow") instanceof String workflow
        && task.get("key") instanceof String key) {
      return new SealedTask(namespace, workflow, key);
    }
    throw new NotUnsealed("the context is sealed, and does not name its task");
  }

  /**
   * The step with plaintext: its context, and the outputs of the steps that it depends on. An
   * {@code input} stays as it is, because it is made of clear members.
   */
  static StepRequest unsealed(StepRequest step, SealedTask task, SealKeys keys) {
    Map<?, ?> payload = (Map<?, ?>) step.taskContext().decode();
    byte[] context = keys.unseal("context", task, null, payload);
    read("context", context);
    Map<Object, Object> outputs = new LinkedHashMap<>();
    ((Map<?, ?>) step.previousResults().decode())
        .forEach((name, output) -> outputs.put(name, unsealed((String) name, output, task, keys)));
    Raw previous = Raw.of(Json.encode(outputs));
    return step.withData(step.handlerConfig(), Raw.of(context), previous, step.input());
  }

  private static Object unsealed(String name, Object output, SealedTask task, SealKeys keys) {
    if (!SealKeys.isSealed(output)) {
      return output;
    }
    return read("output", keys.unseal("output", task, name, (Map<?, ?>) output));
  }

  private static Object read(String kind, byte[] plaintext) {
    try {
      return Json.parse(plaintext);
    } catch (InvalidMessage refusal) {
      throw new NotUnsealed(
          "the "
              + kind
              + " is sealed, and its content is not JSON as messages have it: "
              + refusal.code());
    }
  }

  /** The error, sealed. {@code code} and {@code category} stay readable if they are words. */
  static ErrorDetail sealed(StepRequest step, SealedTask task, SealKeys keys, ErrorDetail error) {
    byte[] payload = keys.seal("error", task, step.stepName(), textOf(error));
    return new ErrorDetail(
        ERROR_MESSAGE,
        word(error.code()),
        word(error.category()),
        error.retryable(),
        error.retryAfterMs(),
        List.of(new String(payload, StandardCharsets.UTF_8)));
  }

  /** The text of the error as JSON. If it is too long, the first lines of the trace explain most. */
  static byte[] textOf(ErrorDetail error) {
    String message = cut(error.message(), MESSAGE_CHARS_MAX);
    List<String> lines = error.backtrace() == null ? List.of() : error.backtrace();
    while (true) {
      Map<String, Object> text = new LinkedHashMap<>();
      text.put("message", message);
      text.put("backtrace", lines);
      byte[] json = Json.encode(text);
      if (json.length <= ERROR_BYTES_MAX) {
        return json;
      }
      if (lines.isEmpty()) {
        message = cut(message, message.codePointCount(0, message.length()) / 2);
      } else {
        lines = lines.subList(0, lines.size() - 1);
      }
    }
  }

  private static String cut(String text, int charsMax) {
    boolean isShort = text.codePointCount(0, text.length()) <= charsMax;
    return isShort ? text : text.substring(0, text.offsetByCodePoints(0, charsMax));
  }

  private static String word(String text) {
    return text != null && WORD.matcher(text).matches() ? text : null;
  }
}
