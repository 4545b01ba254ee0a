package io.stepwire;

import io.stepwire.edge.Redaction;

/** Texts of handlers in a form that every broker accepts, without the values of secrets. */
public final class Texts {
  public static final int MESSAGE_CHARS_MAX = 2000;

  private Texts() {}

  /**
   * The text without values of secrets, U+0000 and halves of surrogate pairs, cut to 2,000
   * characters.
   */
  public static String clean(String text) {
    return clean(text, MESSAGE_CHARS_MAX);
  }

  /** The same, cut to another number of characters. */
  public static String clean(String whole, int charsMax) {
    String text = Redaction.redact(whole); // before the cut, which could leave a part of a value
    boolean isShort = text.length() <= charsMax;
    String cut =
        isShort || text.codePointCount(0, text.length()) <= charsMax
            ? text
            : text.substring(0, text.offsetByCodePoints(0, charsMax));
    StringBuilder clean = null;
    for (int i = 0; i < cut.length(); i++) {
      char c = cut.charAt(i);
      boolean isPair =
          Character.isHighSurrogate(c)
              && i + 1 < cut.length()
              && Character.isLowSurrogate(cut.charAt(i + 1));
      if (isPair) {
        i++;
      } else if (c == 0 || Character.isSurrogate(c)) {
        clean = clean == null ? new StringBuilder(cut) : clean;
        clean.setCharAt(i, c == 0 ? '\uFFFD' : '?');
      }
    }
    return clean == null ? cut : clean.toString();
  }

  /** The same, but a text that was cut ends with {@code …}. */
  public static String shortened(String whole, int charsMax) {
    String text = Redaction.redact(whole);
    if (text.codePointCount(0, text.length()) <= charsMax) {
      return clean(text, charsMax);
    }
    return clean(text.substring(0, text.offsetByCodePoints(0, charsMax - 1)) + "…", charsMax);
  }

  /**
   * The text in quotation marks, as error sentences of all SDKs have it. Control characters are
   * escaped.
   */
  public static String repr(String text) {
    char mark = text.contains("'") && !text.contains("\"") ? '"' : '\'';
    StringBuilder shown = new StringBuilder().append(mark);
    for (int i = 0; i < text.length(); i++) {
      char c = text.charAt(i);
      if (c == '\\' || c == '\'' && mark == '\'') {
        shown.append('\\').append(c);
      } else if (Character.isISOControl(c)) {
        shown.append(escape(c));
      } else {
        shown.append(c);
      }
    }
    return shown.append(mark).toString();
  }

  private static String escape(char c) {
    return switch (c) {
      case '\n' -> "\\n";
      case '\r' -> "\\r";
      case '\t' -> "\\t";
      default -> String.format("\\x%02x", (int) c);
    };
  }

  /** The text in quotation marks, for a message. */
  public static String quoted(String text) {
    return "'" + clean(text, 200) + "'";
  }
}
