package io.stepwire;

/** Texts of handlers in a form that every broker accepts. */
public final class Texts {
  public static final int MESSAGE_CHARS_MAX = 2000;

  private Texts() {}

  /** The text without U+0000 and halves of surrogate pairs, cut to 2,000 characters. */
  public static String clean(String text) {
    return clean(text, MESSAGE_CHARS_MAX);
  }

  /** The same, cut to another number of characters. */
  public static String clean(String text, int charsMax) {
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
  public static String shortened(String text, int charsMax) {
    if (text.codePointCount(0, text.length()) <= charsMax) {
      return clean(text, charsMax);
    }
    return clean(text.substring(0, text.offsetByCodePoints(0, charsMax - 1)) + "…", charsMax);
  }

  /** The text in quotation marks, for a message. */
  public static String quoted(String text) {
    return "'" + clean(text, 200) + "'";
  }
}
