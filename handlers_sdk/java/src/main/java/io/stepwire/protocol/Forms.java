package io.stepwire.protocol;

import java.util.regex.Pattern;

/** The forms of ids and numbers (SPEC.md, section 4). */
final class Forms {
  private static final Pattern BROKER = Pattern.compile("[a-z0-9-]{1,32}");
  private static final Pattern KEY =
      Pattern.compile("[0-9A-Za-z.\\-:+=^!/*?&<>()\\[\\]{}@%$#]{40}");
  private static final int SESSION_DIGITS_MAX = 16;

  private Forms() {}

  static long count(JsonReader in) {
    long number = in.integer();
    if (number < 0) {
      throw new InvalidMessage("bad_field", "`" + in.name() + "` must be at least 0");
    }
    return number;
  }

  static long id(JsonReader in) {
    long number = in.integer();
    if (number < 1) {
      throw new InvalidMessage("bad_field", "`" + in.name() + "` must be at least 1");
    }
    return number;
  }

  static boolean flag(JsonReader in) {
    int c = in.peek();
    if (c != 't' && c != 'f') {
      throw new InvalidMessage("bad_field", "`" + in.name() + "` must be true or false");
    }
    return in.bool();
  }

  static String broker(String id) {
    if (!BROKER.matcher(id).matches()) {
      throw new InvalidMessage("bad_field", "`broker` must match the pattern " + BROKER);
    }
    return id;
  }

  /** {@code <epoch>.<k>}, each of 1 to 16 digits. */
  static String session(String id) {
    int point = id.indexOf('.');
    if (!areDigits(id, 0, point) || !areDigits(id, point + 1, id.length())) {
      throw new InvalidMessage("bad_field", "`session` must have the form <epoch>.<k>");
    }
    return id;
  }

  private static boolean areDigits(String text, int from, int to) {
    if (to <= from || to - from > SESSION_DIGITS_MAX) {
      return false;
    }
    for (int i = from; i < to; i++) {
      if (text.charAt(i) < '0' || text.charAt(i) > '9') {
        return false;
      }
    }
    return true;
  }

  static String sized(String text, int min, int max, String name) {
    int characters = text.codePointCount(0, text.length());
    if (characters < min || characters > max) {
      throw new InvalidMessage(
          "bad_field", "`" + name + "` must have " + min + " to " + max + " characters");
    }
    return text;
  }

  static String key(String text) {
    if (!KEY.matcher(text).matches()) {
      throw new InvalidMessage("bad_field", "`server_key` must be a CURVE key in Z85");
    }
    return text;
  }
}
