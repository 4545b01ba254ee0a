package io.stepwire;

import io.stepwire.edge.Redaction;
import io.stepwire.protocol.StepRequest;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/**
 * {@code context.log()}: lines of a handler, with the ids of its step. They go to the logger {@code
 * stepwire.handler} of java.util.logging, as records of type {@link Line}; without a configuration
 * of the program, from INFO on to stderr.
 */
public final class StepLogger {
  private static final Logger LOGGER = Logger.getLogger(Logs.HANDLER);

  private final transient StepRequest step;

  StepLogger(StepRequest step) {
    this.step = step;
  }

  public void debug(String text) {
    write(Level.FINE, text, null);
  }

  public void info(String text) {
    write(Level.INFO, text, null);
  }

  public void warning(String text) {
    write(Level.WARNING, text, null);
  }

  public void error(String text) {
    write(Level.SEVERE, text, null);
  }

  public void error(String text, Throwable thrown) {
    write(Level.SEVERE, text, thrown);
  }

  private void write(Level level, String text, Throwable thrown) {
    if (LOGGER.isLoggable(level)) {
      String trace = thrown == null ? "" : Logs.traceOf(thrown);
      boolean hasSecret = !Redaction.redact(trace).equals(trace);
      String whole = hasSecret ? text + "\n" + trace : text;
      Line line = new Line(level, Redaction.redact(whole), step);
      line.setThrown(hasSecret ? null : thrown); // a formatter would write the value
      LOGGER.log(line);
    }
  }

  /** A line about a step, for handlers and formatters of the program. */
  public static final class Line extends LogRecord {
    private static final long serialVersionUID = 1L;

    private final long taskId;
    private final long stepId;
    private final String stepName;
    private final long attempt;
    private final long delivery;

    Line(Level level, String text, StepRequest step) {
      super(level, text);
      setLoggerName(Logs.HANDLER);
      setSourceClassName(StepLogger.class.getName());
      taskId = step.taskId();
      stepId = step.item().stepId();
      stepName = step.stepName();
      attempt = step.metadata().attempt();
      delivery = step.item().delivery();
    }

    public long taskId() {
      return taskId;
    }

    public long stepId() {
      return stepId;
    }

    public String stepName() {
      return stepName;
    }

    public long attempt() {
      return attempt;
    }

    public long delivery() {
      return delivery;
    }

    /** {@code task 9 step 12 pay: }. People count attempts from 1. */
    String prefix() {
      String again = attempt > 0 ? " attempt " + (attempt + 1) : "";
      return "task " + taskId + " step " + stepId + " " + stepName + again + ": ";
    }
  }
}
