package io.stepwire.protocol;

import java.util.List;

/** Why a step failed, as its handler reports it. Absent members are null. */
public record ErrorDetail(
    String message,
    String code,
    String category,
    Boolean retryable,
    Long retryAfterMs,
    List<String> backtrace) {

  public static ErrorDetail of(String message, String code, Boolean retryable) {
    return new ErrorDetail(message, code, null, retryable, null, null);
  }

  public ErrorDetail withCode(String other) {
    return new ErrorDetail(message, other, category, retryable, retryAfterMs, backtrace);
  }

  void write(MessageWriter out) {
    out.begin();
    if (!message.isEmpty()) {
      out.text("message", message);
    }
    out.textOrAbsent("code", code);
    out.textOrAbsent("category", category);
    if (retryable != null) {
      out.flag("retryable", retryable);
    }
    if (retryAfterMs != null) {
      out.number("retry_after_ms", retryAfterMs);
    }
    if (backtrace != null) {
      out.texts("backtrace", backtrace);
    }
    out.end();
  }
}
