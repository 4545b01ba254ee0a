package io.stepwire;

import io.stepwire.protocol.ProgressItem;
import io.stepwire.protocol.Raw;
import io.stepwire.protocol.StepRequest;
import io.stepwire.protocol.Typed;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.function.Consumer;

/**
 * One delivery of a step, for its handler.
 *
 * <p>{@link #idempotencyKey} is the same for every attempt and delivery of the step. Pass it to
 * every service that must not act twice. {@link #delivery} only increases: a store that keeps the
 * highest value can refuse writes of an earlier run.
 */
public final class Context {
  private static final int NOTE_CHARS_MAX = 200;
  private static final double NUMBER_MAX = 1L << 53;

  private volatile StepRequest step;
  private volatile boolean isSealed;
  private final Consumer<ProgressItem> report;
  private final Signal cancelled = new Signal();
  private final Signal leaseLost = new Signal();
  private final StepLogger log;
  private volatile String cancelReason;
  private volatile double startedMs;
  private volatile double timeoutAtMs = Double.POSITIVE_INFINITY;
  private Object config;
  private Map<?, ?> results;

  /** For the SDK. A test calls {@code Testing.run} instead. */
  public Context(StepRequest step, Consumer<ProgressItem> report) {
    this.step = step;
    this.report = report;
    this.log = new StepLogger(step);
  }

  // -- the step -----------------------------------------------------------------------------------

  public long taskId() {
    return step.taskId();
  }

  public long stepId() {
    return step.item().stepId();
  }

  public String stepName() {
    return step.stepName();
  }

  public String handlerClass() {
    return step.handlerClass();
  }

  /** The number of failed attempts before this one. */
  public long attempt() {
    return step.metadata().attempt();
  }

  public long retryLimit() {
    return step.metadata().retryLimit();
  }

  public long delivery() {
    return step.item().delivery();
  }

  /** at_least_once or at_most_once. */
  public String deliveryMode() {
    return step.isAtMostOnce() ? "at_most_once" : "at_least_once";
  }

  public String idempotencyKey() {
    return step.metadata().idempotencyKey();
  }

  /** The W3C trace context, to pass on to services that the handler calls; may be null. */
  public String traceparent() {
    return step.metadata().traceparent();
  }

  /** The vendor part of the trace context. Pass it on together with {@link #traceparent}. */
  public String tracestate() {
    return step.metadata().tracestate();
  }

  /** True in a shadow run. The result is only compared, so the run must have no effects. */
  public boolean isShadow() {
    return step.metadata().isShadow();
  }

  // -- input --------------------------------------------------------------------------------------

  /** The step's {@code handler_config}: usually a {@code Map}. */
  public synchronized Object config() {
    if (config == null) {
      config = step.handlerConfig().decode();
    }
    return config;
  }

  /** The step's {@code handler_config} as a record or another type. */
  public <T> T config(Class<T> type) {
    return cast(Typed.convert(config(), type));
  }

  /** The outputs of the steps that this step depends on, by step name. */
  public synchronized Map<?, ?> results() {
    if (results == null) {
      results = step.previousResults().decode() instanceof Map<?, ?> map ? map : Map.of();
    }
    return results;
  }

  /** The output of one of the steps that this step depends on, as a record or another type. */
  public <T> T result(String stepName, Class<T> type) {
    if (!results().containsKey(stepName)) {
      throw new ConfigurationError(
          "step " + stepName() + " does not depend on a step " + Texts.quoted(stepName));
    }
    return cast(Typed.convert(results().get(stepName), type));
  }

  @SuppressWarnings(
      "unchecked") // Typed.convert returns what the type names, also a primitive's box
  private static <T> T cast(Object value) {
    return (T) value;
  }

  /** The input as JSON: the step's own if its workflow defines one, or the task context. */
  public Raw rawInput() {
    return step.input() == null ? step.taskContext() : step.input();
  }

  // -- time ---------------------------------------------------------------------------------------

  /** Milliseconds until the timeout; infinite without a timeout. */
  public double remainingMs() {
    return Math.max(0, timeoutAtMs - Identity.nowMs());
  }

  /** The time of the timeout on the worker's own clock ({@link Identity#nowMs}). */
  public double deadlineMs() {
    return timeoutAtMs;
  }

  /** Milliseconds since the start of the run. */
  public double elapsedMs() {
    return Math.max(0, Identity.nowMs() - startedMs);
  }

  // -- stop ---------------------------------------------------------------------------------------

  /** Set when the run is asked to stop: its timeout, a cancelled task, a shutdown. */
  public Signal cancelled() {
    return cancelled;
  }

  /** timeout, task_cancelled, superseded, not_granted or shutdown; null if not asked to stop. */
  public String cancelReason() {
    return cancelReason;
  }

  /** Throws {@link CancellationException} if the run is asked to stop. */
  public void throwIfCancelled() {
    if (cancelled.isSet()) {
      throw new CancellationException(cancelReason);
    }
  }

  /**
   * Set when the worker has lost the broker that owns this step. It is for information only: the
   * run may still be the only one, and its result may still count.
   */
  public Signal leaseLost() {
    return leaseLost;
  }

  // -- reports ------------------------------------------------------------------------------------

  /** Reports the progress of this run: {@code done} of {@code total}. */
  public void progress(Number done, Number total) {
    progress(done, total, null);
  }

  /**
   * Reports the progress of this run: {@code done} of {@code total}, and a short note for people;
   * total and note may be null.
   *
   * <p>Calls are cheap: only the latest report of a run is sent, at most five times a second. A
   * note with more than 200 characters is cut; a note of a sealed step is not sent. Both numbers must be finite, and at most 2^53.
   */
  public void progress(Number done, Number total, String note) {
    for (Number number : new Number[] {done, total}) {
      if (number != null && !(Math.abs(number.doubleValue()) <= NUMBER_MAX)) {
        throw new ConfigurationError(
            "progress(" + done + ", " + total + "): both must be finite numbers up to 2^53");
      }
    }
    String shortNote = note == null || isSealed ? null : Texts.shortened(note, NOTE_CHARS_MAX);
    report.accept(new ProgressItem(step.item(), plain(done), plain(total), shortNote));
  }

  private static Number plain(Number number) {
    boolean isPlain = number == null || number instanceof Long || number instanceof Double;
    if (isPlain) {
      return number instanceof Long whole && Math.abs(whole) == 1L << 53
          ? number.doubleValue()
          : number;
    }
    boolean isWhole = number instanceof Integer || number instanceof Short;
    return isWhole ? (Number) number.longValue() : (Number) number.doubleValue();
  }

  /** A logger whose lines carry the step's ids. */
  public StepLogger log() {
    return log;
  }

  // -- for the SDK --------------------------------------------------------------------------------

  /** Called before the handler: the run may have waited for a slot since this was made. */
  public void begin(double atMs, double timeoutMs) {
    startedMs = atMs;
    timeoutAtMs = timeoutMs;
  }

  /** Called before the handler: its step is open. */
  public void open(StepRequest openedStep, boolean isSealedStep) {
    step = openedStep;
    isSealed = isSealedStep;
  }

  /** Sets the flags for this reason. A lost lease does not cancel the run. */
  public void stop(String reason) {
    if (reason.equals("lease_lost")) {
      leaseLost.set();
      return;
    }
    if (cancelReason == null) {
      cancelReason = reason;
    }
    cancelled.set();
  }
}
