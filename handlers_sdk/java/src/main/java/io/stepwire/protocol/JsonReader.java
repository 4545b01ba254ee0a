package io.stepwire.protocol;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;

/**
 * A cursor over one JSON text. Every method throws {@link InvalidMessage} if the text is not what
 * it reads. Skipped values are checked as well: syntax, UTF-8, depth.
 *
 * <p>Objects are read with {@link #beginObject} and {@link #nextMember}, arrays with {@link
 * #beginArray} and {@link #nextItem}; the caller reads or skips exactly one value in between.
 */
final class JsonReader {
  private final byte[] data;
  private final int end;
  private int at;
  private String name = "";

  JsonReader(byte[] data, int from, int to) {
    this.data = data;
    this.at = from;
    this.end = to;
  }

  // -- structure ----------------------------------------------------------------------------------

  /** The first byte of the next value. */
  int peek() {
    skipWhite();
    if (at >= end) {
      throw notJson("the text ends too early");
    }
    return data[at];
  }

  void expectEnd() {
    skipWhite();
    if (at < end) {
      throw notJson("unexpected text after the value");
    }
  }

  void beginObject() {
    begin('{', "an object");
  }

  void beginArray() {
    begin('[', "a list");
  }

  private void begin(char bracket, String kind) {
    if (peek() != bracket) {
      skip(0); // the text may not even be JSON
      throw new InvalidMessage("bad_field", "a member must be " + kind);
    }
    at++;
  }

  /** Moves to the value of the next member, whose name {@link #name} returns. False at the end. */
  boolean nextMember() {
    int c = peek();
    if (c == '}') {
      at++;
      return false;
    }
    if (isNotFirst('{')) {
      expect(',');
      c = peek();
    }
    if (c != '"') {
      throw notJson("a member needs a name in quotation marks");
    }
    name = string();
    expect(':');
    skipWhite();
    return true;
  }

  /** Moves to the next item. False at the end of the array. */
  boolean nextItem() {
    int c = peek();
    if (c == ']') {
      at++;
      return false;
    }
    if (isNotFirst('[')) {
      expect(',');
      if (peek() == ']') {
        throw notJson("an array ends with a comma");
      }
    }
    return true;
  }

  String name() {
    return name;
  }

  /** True unless the last byte before white space opened this container. */
  private boolean isNotFirst(char opening) {
    int before = at - 1;
    while (isWhite(data[before])) {
      before--;
    }
    return data[before] != opening;
  }

  private void expect(char c) {
    if (peek() != c) {
      throw notJson("expected '" + c + "'");
    }
    at++;
  }

  private void skipWhite() {
    while (at < end && isWhite(data[at])) {
      at++;
    }
  }

  private static boolean isWhite(byte c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
  }

  // -- values -------------------------------------------------------------------------------------

  boolean bool() {
    if (peek() == 't') {
      literal("true");
      return true;
    }
    literal("false");
    return false;
  }

  Object nothing() {
    literal("null");
    return null;
  }

  boolean isNull() {
    return peek() == 'n';
  }

  /** A Long for an integer within ±(2^53 − 1), otherwise a Double. */
  Number number() {
    int from = at;
    boolean isInteger = skipNumber();
    if (isInteger) {
      return whole(from, at, "integer_out_of_range");
    }
    return fraction(from, at);
  }

  /** An integer, written without fraction or exponent. */
  long integer() {
    int c = peek();
    int from = at;
    if ((c != '-' && (c < '0' || c > '9')) || !skipNumber()) {
      throw new InvalidMessage("bad_field", "a member must be a whole number");
    }
    return whole(from, at, "bad_field");
  }

  private long whole(int from, int to, String code) {
    boolean isNegative = data[from] == '-';
    long value = 0;
    for (int i = isNegative ? from + 1 : from; i < to; i++) {
      value = value * 10 + (data[i] - '0');
      if (value > Limits.INTEGER_MAX) {
        String shown = new String(data, from, Math.min(to - from, 32), StandardCharsets.US_ASCII);
        throw new InvalidMessage(code, shown + " is outside ±(2^53 - 1)");
      }
    }
    return isNegative ? -value : value;
  }

  private double fraction(int from, int to) {
    double value = Double.parseDouble(new String(data, from, to - from, StandardCharsets.US_ASCII));
    if (Double.isInfinite(value)) {
      throw new InvalidMessage("number_out_of_range", "a number is too large for a double");
    }
    return value;
  }

  /** Text. Escapes are resolved, and halves of surrogate pairs refused. */
  String string() {
    if (peek() != '"') {
      throw new InvalidMessage("bad_field", "a member must be text");
    }
    int from = at + 1;
    boolean isPlain = skipString();
    if (isPlain) {
      return new String(data, from, at - 1 - from, StandardCharsets.UTF_8);
    }
    return JsonEscapes.resolve(data, from, at - 1);
  }

  /** The next value, not decoded. */
  Raw raw(int depth) {
    skipWhite();
    int from = at;
    skip(depth);
    return new Raw(data, from, at);
  }

  // -- skipping -----------------------------------------------------------------------------------

  /** Skips one value. {@code depth} is the number of containers around it. */
  void skip(int depth) {
    switch (peek()) {
      case '{' -> skipObject(inside(depth));
      case '[' -> skipArray(inside(depth));
      case '"' -> skipString();
      case 't' -> literal("true");
      case 'f' -> literal("false");
      case 'n' -> literal("null");
      default -> {
        int from = at;
        if (!skipNumber()) {
          fraction(from, at);
        }
      }
    }
  }

  private void skipObject(int depth) {
    at++;
    boolean isFirst = true;
    while (true) {
      int c = peek();
      if (c == '}' && isFirst) {
        break;
      }
      if (c != '"') {
        throw notJson("a member needs a name in quotation marks");
      }
      skipString();
      expect(':');
      skip(depth);
      isFirst = false;
      if (peek() == '}') {
        break;
      }
      expect(',');
    }
    at++;
  }

  private void skipArray(int depth) {
    at++;
    if (peek() == ']') {
      at++;
      return;
    }
    while (true) {
      skip(depth);
      if (peek() == ']') {
        at++;
        return;
      }
      expect(',');
    }
  }

  private static int inside(int depth) {
    if (depth >= Limits.DEPTH_MAX) {
      throw tooDeep();
    }
    return depth + 1;
  }

  private void literal(String word) {
    for (int i = 0; i < word.length(); i++) {
      if (at + i >= end || data[at + i] != word.charAt(i)) {
        throw notJson("unexpected text");
      }
    }
    at += word.length();
  }

  /** Skips a number. True if it is an integer: without fraction and exponent. */
  private boolean skipNumber() {
    int from = at;
    if (at < end && data[at] == '-') {
      at++;
    }
    int digits = skipDigits();
    if (digits == 0) {
      String rest = new String(data, from, Math.min(end - from, 9), StandardCharsets.ISO_8859_1);
      boolean isWord = rest.startsWith("NaN") || rest.startsWith("Inf") || rest.startsWith("-Inf");
      throw isWord
          ? new InvalidMessage("not_a_number", "NaN and Infinity are not JSON")
          : notJson("unexpected text");
    }
    if (digits > 1 && data[at - digits] == '0') {
      throw notJson("a number begins with 0");
    }
    boolean isInteger = true;
    if (at < end && data[at] == '.') {
      at++;
      isInteger = false;
      if (skipDigits() == 0) {
        throw notJson("a number ends with its point");
      }
    }
    if (at < end && (data[at] == 'e' || data[at] == 'E')) {
      at++;
      isInteger = false;
      if (at < end && (data[at] == '+' || data[at] == '-')) {
        at++;
      }
      if (skipDigits() == 0) {
        throw notJson("a number ends with its exponent");
      }
    }
    return isInteger;
  }

  private int skipDigits() {
    int from = at;
    while (at < end && data[at] >= '0' && data[at] <= '9') {
      at++;
    }
    return at - from;
  }

  /** Skips a string. True if it has no escapes. */
  private boolean skipString() {
    int from = ++at;
    boolean isPlain = true;
    boolean isAscii = true;
    while (true) {
      if (at >= end) {
        throw notJson("a string has no end");
      }
      byte c = data[at];
      if (c == '"') {
        break;
      }
      if (c == '\\') {
        isPlain = false;
        at++;
      } else if (c < 0) {
        isAscii = false;
      } else if (c < 0x20) {
        throw notJson("a string holds a control character");
      }
      at++;
    }
    if (!isAscii) {
      checkUtf8(from, at);
    }
    if (!isPlain) {
      JsonEscapes.check(data, from, at);
    }
    at++;
    return isPlain;
  }

  private void checkUtf8(int from, int to) {
    try {
      StandardCharsets.UTF_8
          .newDecoder()
          .onMalformedInput(CodingErrorAction.REPORT)
          .decode(ByteBuffer.wrap(data, from, to - from));
    } catch (CharacterCodingException fault) {
      throw new InvalidMessage("not_utf8", "the JSON is not UTF-8");
    }
  }

  static InvalidMessage tooDeep() {
    return new InvalidMessage("too_deep", "the nesting is deeper than " + Limits.DEPTH_MAX);
  }

  private InvalidMessage notJson(String reason) {
    return new InvalidMessage("not_json", reason + " (byte " + at + ")");
  }
}
