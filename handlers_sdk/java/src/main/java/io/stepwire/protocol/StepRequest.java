package io.stepwire.protocol;

/**
 * One step as a worker receives it. {@code input} is null where the workflow defines none. {@code
 * mayNeedOpening}: false if its message certainly holds no reference to a secret and nothing
 * sealed.
 */
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
    boolean mayNeedOpening,
    Metadata metadata) {

  /** The step with other data. */
  public StepRequest withData(Raw config, Raw context, Raw previous, Raw ownInput) {
    return new StepRequest(
        item,
        taskId,
        stepName,
        handlerClass,
        config,
        context,
        previous,
        ownInput,
        isAtMostOnce,
        mayNeedOpening,
        metadata);
  }

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
