package io.stepwire.runners;

import io.stepwire.OutcomeUnknown;
import io.stepwire.StepError;
import io.stepwire.Texts;
import io.stepwire.protocol.ErrorDetail;
import io.stepwire.protocol.InvalidMessage;
import io.stepwire.protocol.Json;
import io.stepwire.protocol.Result;
import io.stepwire.protocol.Result.Status;
import io.stepwire.protocol.ResultMetadata;
import io.stepwire.protocol.StepRequest;
import java.util.concurrent.CompletionStage;
import java.util.stream.BaseStream;

/** The results that are made of a handler's return values and exceptions. */
final class Outcomes {
  private static final int CODE_CHARS_MAX = 128;

  private Outcomes() {}

  /**
   * The result of a handler that returned: its output, or an error if JSON, a database or another
   * language cannot hold it.
   */
  static Result completed(Registered handler, StepRequest step, Object value, double tookMs) {
    byte[] output;
    try {
      output = Json.encodeOutput(value);
    } catch (InvalidMessage refusal) {
      String advice = adviceFor(value);
      String why = advice == null ? reasonOf(refusal) : advice;
      String text = "the output of '" + handler.name() + "' cannot be sent as JSON: " + why;
      return sdkFailure(step, "bad_output", text, metadata(tookMs, null));
    }
    return Result.completed(step.item(), output, metadata(tookMs, handler.version()));
  }

  /** What is wrong with an output, and what to return instead: the same sentences in every SDK. */
  private static String reasonOf(InvalidMessage refusal) {
    return switch (refusal.code()) {
      case "not_a_number" ->
          "it holds NaN or Infinity, which JSON does not have: return null instead";
      case "integer_out_of_range" -> "it holds an integer outside ±(2^53 - 1): return it as text";
      case "nul_character" ->
          "it holds U+0000, which databases cannot store: remove it, or return the text as Base64";
      case "lone_surrogate" ->
          "it holds half of a surrogate pair: return well-formed text, or Base64";
      default -> refusal.reason();
    };
  }

  /** Advice to the author of a handler whose output is something that was never run; or null. */
  private static String adviceFor(Object value) {
    if (value instanceof CompletionStage<?>) {
      return "the handler returns a future: wait for it, with join()";
    }
    if (value instanceof BaseStream<?, ?>) {
      return "the handler returns a stream: return a value, for example a list";
    }
    return null;
  }

  /**
   * The result of a handler that threw. The message of an unexpected exception begins with its
   * type. A StepError's message is the handler's own sentence, and a subclass of the handler's own
   * names its code.
   */
  static Result failed(Registered handler, StepRequest step, Throwable error, double tookMs) {
    ErrorDetail detail;
    if (error instanceof StepError known) {
      boolean isOwn = known.getClass().getPackage() == StepError.class.getPackage();
      String code = known.code() != null || isOwn ? known.code() : Traces.nameOf(error);
      String text = Traces.textOf(error);
      detail =
          new ErrorDetail(
              Texts.clean(text.isEmpty() ? Traces.nameOf(error) : text),
              code == null || code.isEmpty() ? null : Texts.clean(code, CODE_CHARS_MAX),
              known.category() == null ? null : Texts.clean(known.category(), CODE_CHARS_MAX),
              known.retryable(),
              known.retryAfterMs(),
              null);
    } else {
      detail =
          new ErrorDetail(
              Texts.clean(Traces.summary(error)),
              Texts.clean(Traces.nameOf(error), CODE_CHARS_MAX),
              null,
              null,
              null,
              Traces.backtrace(error));
    }
    ResultMetadata metadata = metadata(tookMs, handler.version());
    return Result.without(step.item(), Status.FAILED, detail, metadata);
  }

  /** The result of a run that stopped because of a timeout or a cancel. */
  static Result stopped(Registered handler, StepRequest step, String reason, double tookMs) {
    boolean isTimeout = reason.equals("timeout");
    String text = isTimeout ? "the run exceeded its timeout" : "the run was cancelled: " + reason;
    String code = isTimeout ? "timeout" : "cancelled";
    if (step.isAtMostOnce()) {
      code = OutcomeUnknown.CODE;
    }
    return Result.without(
        step.item(),
        Status.FAILED,
        ErrorDetail.of(text, code, null),
        metadata(tookMs, handler.version()));
  }

  /** The result of a handler that was not called, because the input does not fit its type. */
  static Result badInput(Registered handler, StepRequest step, String why) {
    String text =
        "the input of '"
            + step.stepName()
            + "' does not fit handler '"
            + handler.name()
            + "': "
            + why;
    ErrorDetail detail = ErrorDetail.of(Texts.clean(text), "bad_input", false);
    return Result.without(step.item(), Status.ERROR, detail, ResultMetadata.EMPTY);
  }

  /** The result of a handler that was called, but whose outcome the SDK cannot report. */
  private static Result sdkFailure(
      StepRequest step, String code, String text, ResultMetadata metadata) {
    ErrorDetail detail =
        step.isAtMostOnce()
            ? ErrorDetail.of(Texts.clean(code + ": " + text), OutcomeUnknown.CODE, null)
            : ErrorDetail.of(Texts.clean(text), code, false);
    return Result.without(step.item(), Status.ERROR, detail, metadata);
  }

  /** The time is rounded to microseconds. */
  private static ResultMetadata metadata(double tookMs, String version) {
    return new ResultMetadata(Math.round(tookMs * 1000) / 1000.0, version, null, null);
  }
}
