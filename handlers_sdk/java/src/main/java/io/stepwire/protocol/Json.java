package io.stepwire.protocol;

import java.nio.charset.StandardCharsets;

/**
 * Strict JSON (SPEC.md, section 3). Objects become {@code Map<String, Object>} in their order,
 * arrays {@code List<Object>}, integers {@code Long}, other numbers {@code Double}, and the rest
 * {@code String}, {@code Boolean} and {@code null}.
 */
public final class Json {
  private Json() {}

  /** Parses one value. Throws {@link InvalidMessage}. */
  public static Object parse(byte[] data) {
    return parse(data, 0, data.length);
  }

  public static Object parse(String text) {
    return parse(text.getBytes(StandardCharsets.UTF_8));
  }

  static Object parse(byte[] data, int from, int to) {
    JsonReader reader = new JsonReader(data, from, to);
    Object value = JsonTree.read(reader);
    reader.expectEnd();
    return value;
  }

  /**
   * The value as compact JSON: maps, lists, arrays, records, strings, numbers, booleans, enums,
   * {@code Optional}, and what {@link JsonWriter#value} names. Throws {@link InvalidMessage} for
   * what JSON, a database or another language cannot hold.
   */
  public static byte[] encode(Object value) {
    JsonWriter out = new JsonWriter(256);
    out.value(value);
    return out.toBytes();
  }

  /** The output of a step. It is the third level of its message, which may have 32. */
  public static byte[] encodeOutput(Object value) {
    JsonWriter out = new JsonWriter(128);
    out.enter(3);
    out.value(value);
    return out.toBytes();
  }

  public static String text(Object value) {
    return new String(encode(value), StandardCharsets.UTF_8);
  }
}
