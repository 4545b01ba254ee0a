package io.stepwire.protocol;

/** Facts about a run from the handler's side. Absent members are null. */
public record ResultMetadata(
    Number executionTimeMs, String handlerVersion, Boolean retryable, String stderr) {

  public static final ResultMetadata EMPTY = new ResultMetadata(null, null, null, null);

  public ResultMetadata withoutStderr() {
    return new ResultMetadata(executionTimeMs, handlerVersion, retryable, null);
  }

  void write(MessageWriter out) {
    out.begin();
    if (executionTimeMs != null) {
      out.any("execution_time_ms", executionTimeMs);
    }
    out.textOrAbsent("handler_version", handlerVersion);
    if (retryable != null) {
      out.flag("retryable", retryable);
    }
    out.textOrAbsent("stderr", stderr);
    out.end();
  }
}
