package io.stepwire;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.time.format.DateTimeFormatter;
import java.util.logging.ConsoleHandler;
import java.util.logging.Formatter;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;

/**
 * Readable log lines on stderr, for programs that do not configure java.util.logging:
 *
 * <pre>2026-11-19 10:03:15 INFO    task 9 step 12 pay: charged 12.50 EUR</pre>
 *
 * <p>A program configures logging with a file or a class (the system properties of
 * java.util.logging), or with a handler of its own on the root logger or on a logger {@code
 * stepwire…}. The SDK then adds nothing.
 */
public final class Logs {
  /** The worker's own events. */
  public static final String WORKER = "stepwire.worker";

  /** The lines of handlers. */
  public static final String HANDLER = "stepwire.handler";

  // Held here, because java.util.logging forgets loggers that no one refers to.
  private static final Logger ROOT = Logger.getLogger("");
  private static final Logger STEPWIRE = Logger.getLogger("stepwire");
  private static final Logger[] OWN = {
    STEPWIRE, Logger.getLogger(WORKER), Logger.getLogger(HANDLER)
  };

  private Logs() {}

  /** Writes the SDK's records to stderr from INFO on, unless the program configured logging. */
  public static synchronized void setUp() {
    if (isConfigured() || STEPWIRE.getHandlers().length > 0) {
      return;
    }
    STEPWIRE.setUseParentHandlers(false);
    STEPWIRE.addHandler(new ReadableHandler());
  }

  /** The stack trace as Java prints it. */
  static String traceOf(Throwable thrown) {
    StringWriter trace = new StringWriter();
    thrown.printStackTrace(new PrintWriter(trace));
    return trace.toString().stripTrailing();
  }

  private static boolean isConfigured() {
    if (System.getProperty("java.util.logging.config.file") != null
        || System.getProperty("java.util.logging.config.class") != null) {
      return true;
    }
    for (Logger logger : OWN) {
      for (Handler handler : logger.getHandlers()) {
        if (!(handler instanceof ReadableHandler)) {
          return true;
        }
      }
    }
    Handler[] root = ROOT.getHandlers();
    return root.length != 1 || root[0].getClass() != ConsoleHandler.class;
  }

  /** Writes one record a line to the current stderr. */
  private static final class ReadableHandler extends Handler {
    ReadableHandler() {
      setFormatter(new ReadableFormatter());
      setLevel(Level.ALL);
    }

    @Override
    public void publish(LogRecord record) {
      if (isLoggable(record)) {
        System.err.println(getFormatter().format(record));
      }
    }

    @Override
    public void flush() {
      System.err.flush();
    }

    @Override
    public void close() {
      flush();
    }
  }

  /** Time, level, step and text of a record. */
  private static final class ReadableFormatter extends Formatter {
    private static final DateTimeFormatter TIME =
        DateTimeFormatter.ofPattern("yyyy-MM-dd HH:mm:ss");

    @Override
    public String format(LogRecord record) {
      Instant at = record.getInstant();
      String time = TIME.format(LocalDateTime.ofInstant(at, ZoneId.systemDefault()));
      String prefix = record instanceof StepLogger.Line line ? line.prefix() : "";
      String text = String.valueOf(record.getMessage());
      StringBuilder written = new StringBuilder();
      written.append(time).append(' ').append(levelOf(record)).append(' ');
      written.append(prefix).append(text);
      if (record.getThrown() != null) {
        written.append('\n').append(traceOf(record.getThrown()));
      }
      return written.toString();
    }

    /** The names of the levels in every SDK, in seven characters. */
    private static String levelOf(LogRecord record) {
      int level = record.getLevel().intValue();
      if (level >= Level.SEVERE.intValue()) {
        return "ERROR  ";
      }
      if (level >= Level.WARNING.intValue()) {
        return "WARNING";
      }
      return level >= Level.INFO.intValue() ? "INFO   " : "DEBUG  ";
    }
  }
}
