package io.stepwire.protocol;

import java.nio.charset.StandardCharsets;

/** One JSON value that is not decoded yet: a part of a frame. */
public final class Raw {
  public static final Raw NULL = of("null");
  public static final Raw EMPTY_OBJECT = of("{}");

  private final byte[] data;
  private final int from;
  private final int to;

  public Raw(byte[] data, int from, int to) {
    this.data = data;
    this.from = from;
    this.to = to;
  }

  public static Raw of(byte[] data) {
    return new Raw(data, 0, data.length);
  }

  public static Raw of(String json) {
    return of(json.getBytes(StandardCharsets.UTF_8));
  }

  public int length() {
    return to - from;
  }

  /** The value as Java objects. Throws {@link InvalidMessage} if it breaks a rule of SPEC.md §3. */
  public Object decode() {
    return Json.parse(data, from, to);
  }

  /** False if the value certainly holds no reference to a secret and is not sealed. */
  public boolean mayNeedOpening() {
    return mayNeedOpening(data, from, to);
  }

  /** The same for any JSON. A key may also be written with escapes. */
  static boolean mayNeedOpening(byte[] data, int from, int to) {
    for (int i = from; i < to - 3; i++) {
      byte c = data[i];
      if (c == '$' && data[i + 1] == 's' && data[i + 2] == 'e'
          || c == '\\' && data[i + 1] == 'u' && data[i + 2] == '0' && data[i + 3] == '0') {
        return true;
      }
    }
    return false;
  }

  void writeTo(JsonWriter out) {
    out.bytes(data, from, to);
  }

  @Override
  public String toString() {
    return new String(data, from, to - from, StandardCharsets.UTF_8);
  }
}
