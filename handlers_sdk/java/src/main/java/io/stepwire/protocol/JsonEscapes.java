package io.stepwire.protocol;

import java.nio.charset.StandardCharsets;

/** The escapes in a JSON string. */
final class JsonEscapes {
  private JsonEscapes() {}

  /** Throws {@link InvalidMessage} for an unknown escape, or for half of a surrogate pair. */
  static void check(byte[] data, int from, int to) {
    resolve(data, from, to);
  }

  /** The text between two quotation marks, which is valid UTF-8. */
  static String resolve(byte[] data, int from, int to) {
    StringBuilder text = new StringBuilder(to - from);
    int plain = from;
    int at = from;
    while (at < to) {
      if (data[at] != '\\') {
        at++;
        continue;
      }
      append(text, data, plain, at);
      if (at + 1 >= to) {
        throw new InvalidMessage("not_json", "a string ends in an escape");
      }
      byte kind = data[at + 1];
      at += 2;
      if (kind == 'u') {
        char unit = unit(data, at, to);
        at += 4;
        if (Character.isHighSurrogate(unit)) {
          boolean isPair = at + 1 < to && data[at] == '\\' && data[at + 1] == 'u';
          char low = isPair ? unit(data, at + 2, to) : 0;
          if (!Character.isLowSurrogate(low)) {
            throw loneSurrogate();
          }
          text.append(unit).append(low);
          at += 6;
        } else if (Character.isLowSurrogate(unit)) {
          throw loneSurrogate();
        } else {
          text.append(unit);
        }
      } else {
        text.append(simple(kind));
      }
      plain = at;
    }
    append(text, data, plain, to);
    return text.toString();
  }

  private static void append(StringBuilder text, byte[] data, int from, int to) {
    if (to > from) {
      text.append(new String(data, from, to - from, StandardCharsets.UTF_8));
    }
  }

  private static char simple(byte kind) {
    return switch (kind) {
      case '"', '\\', '/' -> (char) kind;
      case 'b' -> '\b';
      case 'f' -> '\f';
      case 'n' -> '\n';
      case 'r' -> '\r';
      case 't' -> '\t';
      default -> throw new InvalidMessage("not_json", "a string holds an unknown escape");
    };
  }

  private static char unit(byte[] data, int from, int to) {
    if (from + 4 > to) {
      throw new InvalidMessage("not_json", "a string ends in an escape");
    }
    int unit = 0;
    for (int i = from; i < from + 4; i++) {
      int digit = Character.digit(data[i], 16);
      if (digit < 0) {
        throw new InvalidMessage("not_json", "an escape needs four hexadecimal digits");
      }
      unit = unit << 4 | digit;
    }
    return (char) unit;
  }

  private static InvalidMessage loneSurrogate() {
    return new InvalidMessage("lone_surrogate", "a string holds half of a surrogate pair");
  }
}
