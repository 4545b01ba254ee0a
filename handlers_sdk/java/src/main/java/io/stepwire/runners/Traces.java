package io.stepwire.runners;

import io.stepwire.Texts;
import io.stepwire.edge.Redaction;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;

/** Stack traces of handlers, without the frames of the SDK. */
final class Traces {
  private static final int BACKTRACE_BYTES_MAX = 8192;
  private static final int LINE_CHARS_MAX = 1000;
  private static final int FRAMES_MAX = 100;
  private static final String SDK = "io.stepwire.runners.";

  private Traces() {}

  /** The message of an exception; empty if its own method fails. */
  static String textOf(Throwable error) {
    try {
      String text = error.getMessage();
      return text == null ? "" : Redaction.redact(text);
    } catch (RuntimeException | Error fault) {
      return "";
    }
  }

  static String nameOf(Throwable error) {
    String name = error.getClass().getName();
    return name.substring(name.lastIndexOf('.') + 1);
  }

  /** The type and the text of an exception: {@code IllegalStateException: nope}. */
  static String summary(Throwable error) {
    String text = textOf(error);
    return text.isEmpty() ? nameOf(error) : nameOf(error) + ": " + text;
  }

  /**
   * The lines of the stack trace, at most 8 KiB: the first lines, because in Java the innermost
   * frames come first.
   */
  static List<String> backtrace(Throwable error) {
    List<String> lines = new ArrayList<>();
    Set<Throwable> seen = Collections.newSetFromMap(new IdentityHashMap<>());
    String title = "";
    for (Throwable each = error; each != null && seen.add(each); each = each.getCause()) {
      summary(each).lines().forEach(new FirstLine(title, lines)::add);
      addFrames(each, lines);
      title = "Caused by: ";
    }
    return fitting(lines);
  }

  private static void addFrames(Throwable error, List<String> lines) {
    int frames = 0;
    for (StackTraceElement frame : error.getStackTrace()) {
      if (frame.getClassName().startsWith(SDK)) {
        return; // the SDK called the handler
      }
      if (++frames > FRAMES_MAX) {
        lines.add("    …");
        return;
      }
      lines.add(Texts.clean("    at " + frame, LINE_CHARS_MAX));
    }
  }

  private static List<String> fitting(List<String> lines) {
    int left = BACKTRACE_BYTES_MAX - 64; // for the line about the others
    int kept = 0;
    for (String line : lines) {
      left -= line.getBytes(StandardCharsets.UTF_8).length + 1;
      if (left < 0) {
        break;
      }
      kept++;
    }
    if (kept == lines.size()) {
      return lines;
    }
    List<String> fitting = new ArrayList<>(lines.subList(0, kept));
    fitting.add("… (" + (lines.size() - kept) + " more lines)");
    return fitting;
  }

  /** Writes a title before the first line that it adds. */
  private static final class FirstLine {
    private final List<String> lines;
    private String title;

    FirstLine(String title, List<String> lines) {
      this.title = title;
      this.lines = lines;
    }

    void add(String line) {
      lines.add(Texts.clean(title + line, LINE_CHARS_MAX));
      title = "";
    }
  }
}
