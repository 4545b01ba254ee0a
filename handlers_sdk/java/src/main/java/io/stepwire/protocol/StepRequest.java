package io.stepwire.protocol;

/** One step as a worker receives it. {@code input} is null where the workflow defines none. */
public record StepRequest(
    Item item,
    long taskId,
    String stepName,
    String handlerClass,
    Raw handlerConfig,
    Raw taskContext,
    Raw previousResults,
    Raw input,
    boolean isAtMostOnce,
    Metadata metadata) {

  /** Facts about this run of the step. Absent members are null; {@code deadlineMs} is -1. */
  public record Metadata(
      long attempt,
      long retryLimit,
      long timeoutMs,
      String idempotencyKey,
      String traceparent,
      String tracestate,
      long deadlineMs,
      boolean isShadow) {}
}
