package io.stepwire.runners;

import io.stepwire.Logs;
import io.stepwire.Permanent;
import io.stepwire.Retry;
import io.stepwire.StepError;
import io.stepwire.Texts;
import io.stepwire.protocol.Result;
import io.stepwire.protocol.StepRequest;
import java.util.Map;
import java.util.Set;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * The log lines of runs that end without an output:
 *
 * <pre>task 9 step 12 pay attempt 1 of 4 failed: IllegalStateException: nope</pre>
 *
 * <p>An unexpected exception is an error, with its stack trace. What a handler says on purpose is a
 * warning of one line.
 */
public final class RunLog {
  private static final Logger LOG = Logger.getLogger(Logs.WORKER);
  private static final int TEXT_CHARS_MAX = 500; // the trace and the result have more
  private static final Map<String, String> REASONS =
      Map.of(
          "timeout", "exceeded its timeout and is asked to stop",
          "task_cancelled", "is asked to stop: the task was cancelled",
          "not_granted", "is asked to stop: the broker does not grant it",
          "superseded",
              "is asked to stop: the broker has ended this run (its timeout, or a retry"
                  + " elsewhere); its result will not be used",
          "shutdown", "is asked to stop: the worker shuts down",
          "lease_lost", "continues without a broker: its result may come too late");
  private static final Set<String> EXPECTED = Set.of("task_cancelled", "shutdown");

  private RunLog() {}

  /**
   * Logs the exception of a handler; of a sealed step, only its type. {@code cancelReason}: null if
   * not asked to stop.
   */
  static void thrown(StepRequest step, Throwable error, String cancelReason, boolean isSealed) {
    if (isSealed) {
      String type = Traces.nameOf(error);
      write(Level.WARNING, step, "failed: " + type + "; the text of the error is sealed");
      return;
    }
    String summary = Traces.summary(error);
    if (cancelReason != null) {
      write(
          Level.INFO, step, "ended after it was asked to stop (" + cancelReason + "): " + summary);
      return;
    }
    String text = "failed: " + summary;
    if (!(error instanceof StepError)) {
      write(Level.SEVERE, step, text, String.join("\n", Traces.backtrace(error)));
      return;
    }
    if (error instanceof Retry retry) {
      double seconds = retry.retryAfterMs() / 1000.0;
      String shown = seconds == Math.rint(seconds) ? "" + (long) seconds : "" + seconds;
      text += "; a retry may start after " + shown + " s";
    } else if (error instanceof Permanent) {
      text += "; no retry";
    }
    if (error.getCause() != null) {
      text += " (caused by " + Traces.summary(error.getCause()) + ")";
    }
    write(Level.WARNING, step, text);
  }

  /** Logs a failure that the SDK has found: input that does not fit, output that is not JSON. */
  public static void notReported(StepRequest step, Result result, boolean isSealed) {
    String text = isSealed ? "the text of the error is sealed" : result.error().message();
    write(Level.SEVERE, step, "failed: " + result.error().code() + ": " + text);
  }

  /** Logs that a run is asked to stop. A handler may ignore it. */
  public static void interrupted(StepRequest step, String reason) {
    Level level = EXPECTED.contains(reason) ? Level.INFO : Level.WARNING;
    write(level, step, REASONS.getOrDefault(reason, "is asked to stop: " + reason));
  }

  private static void write(Level level, StepRequest step, String text) {
    write(level, step, text, null);
  }

  private static void write(Level level, StepRequest step, String text, String trace) {
    if (!LOG.isLoggable(level)) {
      return;
    }
    long attempt = step.metadata().attempt() + 1; // people count from 1
    long attempts = step.metadata().retryLimit() + 1;
    String name = "task " + step.taskId() + " step " + step.item().stepId();
    String line =
        name
            + " "
            + Texts.clean(step.stepName())
            + " attempt "
            + attempt
            + " of "
            + attempts
            + " "
            + Texts.shortened(text, TEXT_CHARS_MAX);
    LOG.log(level, trace == null ? line : line + "\n" + trace);
  }
}
