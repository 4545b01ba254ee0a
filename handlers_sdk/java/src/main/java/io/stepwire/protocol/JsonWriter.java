package io.stepwire.protocol;

import java.lang.reflect.Array;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.temporal.TemporalAccessor;
import java.util.Arrays;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;

/**
 * Writes compact JSON into a growing buffer. Text is UTF-8, and escaped only where JSON demands.
 */
public final class JsonWriter {
  private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);
  private static final BigInteger INTEGER_MAX = BigInteger.valueOf(Limits.INTEGER_MAX);

  private byte[] buffer;
  private int size;
  private int depth;

  public JsonWriter(int capacity) {
    buffer = new byte[capacity];
  }

  public byte[] toBytes() {
    return Arrays.copyOf(buffer, size);
  }

  /** Writes what {@link Json#encode} accepts. */
  public void value(Object value) {
    if (value == null) {
      ascii("null");
    } else if (value instanceof CharSequence text) {
      string(text.toString());
    } else if (value instanceof Number number) {
      number(number);
    } else if (value instanceof Boolean flag) {
      ascii(flag ? "true" : "false");
    } else if (value instanceof Map<?, ?> map) {
      map(map);
    } else if (value instanceof Iterable<?> items) {
      array(items.iterator());
    } else if (value instanceof Record fields) {
      fields(fields);
    } else if (value instanceof Optional<?> optional) {
      value(optional.orElse(null));
    } else if (value instanceof Raw raw) {
      value(raw.decode()); // checked: text from a handler is not trusted
    } else if (value instanceof Enum<?> || value instanceof Character) {
      string(value instanceof Enum<?> constant ? constant.name() : value.toString());
    } else if (value instanceof TemporalAccessor || value instanceof UUID) {
      string(value.toString());
    } else if (value.getClass().isArray()) {
      elements(value);
    } else {
      throw new InvalidMessage(
          "not_json",
          "it holds a value of the type "
              + value.getClass().getName()
              + ", which has no form in JSON: return plain data");
    }
  }

  // -- containers ---------------------------------------------------------------------------------

  private void map(Map<?, ?> map) {
    open('{');
    String separator = "";
    for (Map.Entry<?, ?> entry : map.entrySet()) {
      if (!(entry.getKey() instanceof CharSequence key)) {
        throw new InvalidMessage("not_json", "a key of a map is no text: " + entry.getKey());
      }
      ascii(separator);
      member(key.toString());
      value(entry.getValue());
      separator = ",";
    }
    close('}');
  }

  private void fields(Record record) {
    open('{');
    boolean isFirst = true;
    for (RecordType.Field field : RecordType.of(record.getClass()).fields()) {
      Object value = field.read(record);
      if (value instanceof Optional<?> optional && optional.isEmpty()) {
        continue; // an absent member, as it is read
      }
      if (!isFirst) {
        put((byte) ',');
      }
      isFirst = false;
      member(field.name());
      value(value);
    }
    close('}');
  }

  private void array(Iterator<?> items) {
    open('[');
    boolean isFirst = true;
    while (items.hasNext()) {
      if (!isFirst) {
        put((byte) ',');
      }
      isFirst = false;
      value(items.next());
    }
    close(']');
  }

  private void elements(Object array) {
    open('[');
    for (int i = 0; i < Array.getLength(array); i++) {
      if (i > 0) {
        put((byte) ',');
      }
      value(Array.get(array, i));
    }
    close(']');
  }

  private void open(char bracket) {
    if (++depth > Limits.DEPTH_MAX) {
      throw JsonReader.tooDeep();
    }
    put((byte) bracket);
  }

  private void close(char bracket) {
    depth--;
    put((byte) bracket);
  }

  /** The writer for business data inside a message: {@code levels} containers are around it. */
  void enter(int levels) {
    depth += levels;
  }

  // -- numbers ------------------------------------------------------------------------------------

  private void number(Number number) {
    if (number instanceof Double || number instanceof Float) {
      fraction(
          number instanceof Float ? Double.parseDouble(number.toString()) : number.doubleValue());
    } else if (number instanceof BigInteger big) {
      big(big);
    } else if (number instanceof BigDecimal decimal) {
      decimal(decimal);
    } else if (number instanceof Long
        || number instanceof Integer
        || number instanceof Short
        || number instanceof Byte) {
      integer(checked(number.longValue()));
    } else {
      String kind = number.getClass().getName();
      throw new InvalidMessage(
          "not_json",
          "it holds a value of the type "
              + kind
              + ", which has no form in JSON: return plain data");
    }
  }

  private void decimal(BigDecimal decimal) {
    if (decimal.scale() <= 0 && decimal.precision() - decimal.scale() <= 16) {
      big(decimal.toBigIntegerExact());
      return;
    }
    double value = decimal.doubleValue();
    if (Double.isInfinite(value)) {
      throw new InvalidMessage("number_out_of_range", "a number is too large for a double");
    }
    ascii(decimal.scale() <= 0 ? decimal.toBigInteger() + ".0" : decimal.toString());
  }

  private void big(BigInteger big) {
    if (big.abs().compareTo(INTEGER_MAX) > 0) {
      throw outOfRange(big.toString());
    }
    ascii(big.toString());
  }

  private static long checked(long value) {
    if (value > Limits.INTEGER_MAX || value < -Limits.INTEGER_MAX) {
      throw outOfRange(Long.toString(value));
    }
    return value;
  }

  private static InvalidMessage outOfRange(String number) {
    String shown = number.length() > 32 ? number.substring(0, 32) : number;
    return new InvalidMessage(
        "integer_out_of_range", shown + " is outside ±(2^53 - 1): return it as a string");
  }

  void integer(long value) {
    if (value < 0) {
      put((byte) '-');
      value = -value;
    }
    int digits = 1;
    for (long rest = value; rest >= 10; rest /= 10) {
      digits++;
    }
    need(digits);
    for (int i = size + digits - 1; i >= size; i--) {
      buffer[i] = (byte) ('0' + value % 10);
      value /= 10;
    }
    size += digits;
  }

  void fraction(double value) {
    if (Double.isNaN(value) || Double.isInfinite(value)) {
      throw new InvalidMessage("not_a_number", "NaN and Infinity are not JSON");
    }
    ascii(Doubles.text(value));
  }

  // -- text ---------------------------------------------------------------------------------------

  /** The name of a member, and its colon. */
  void member(String name) {
    string(name);
    put((byte) ':');
  }

  void string(String text) {
    int length = text.length();
    need(length * 3 + 2);
    buffer[size++] = '"';
    for (int i = 0; i < length; i++) {
      char c = text.charAt(i);
      if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
        buffer[size++] = (byte) c;
      } else if (c < 0x80) {
        escape(c);
        need((length - i) * 3 + 1);
      } else if (c < 0x800) {
        buffer[size++] = (byte) (0xC0 | c >> 6);
        buffer[size++] = (byte) (0x80 | c & 0x3F);
      } else if (!Character.isSurrogate(c)) {
        buffer[size++] = (byte) (0xE0 | c >> 12);
        buffer[size++] = (byte) (0x80 | c >> 6 & 0x3F);
        buffer[size++] = (byte) (0x80 | c & 0x3F);
      } else {
        if (!Character.isHighSurrogate(c)
            || i + 1 == length
            || !Character.isLowSurrogate(text.charAt(i + 1))) {
          throw new InvalidMessage("lone_surrogate", "a string holds half of a surrogate pair");
        }
        int point = Character.toCodePoint(c, text.charAt(++i));
        buffer[size++] = (byte) (0xF0 | point >> 18);
        buffer[size++] = (byte) (0x80 | point >> 12 & 0x3F);
        buffer[size++] = (byte) (0x80 | point >> 6 & 0x3F);
        buffer[size++] = (byte) (0x80 | point & 0x3F);
      }
    }
    put((byte) '"');
  }

  private void escape(char c) {
    need(6);
    buffer[size++] = '\\';
    switch (c) {
      case '"', '\\' -> buffer[size++] = (byte) c;
      case '\b' -> buffer[size++] = 'b';
      case '\f' -> buffer[size++] = 'f';
      case '\n' -> buffer[size++] = 'n';
      case '\r' -> buffer[size++] = 'r';
      case '\t' -> buffer[size++] = 't';
      case '\0' ->
          throw new InvalidMessage(
              "nul_character", "a string holds U+0000, which databases cannot store");
      default -> {
        buffer[size++] = 'u';
        buffer[size++] = '0';
        buffer[size++] = '0';
        buffer[size++] = HEX[c >> 4];
        buffer[size++] = HEX[c & 15];
      }
    }
  }

  void ascii(String text) {
    need(text.length());
    for (int i = 0; i < text.length(); i++) {
      buffer[size++] = (byte) text.charAt(i);
    }
  }

  void bytes(byte[] source, int from, int to) {
    need(to - from);
    System.arraycopy(source, from, buffer, size, to - from);
    size += to - from;
  }

  private void put(byte c) {
    need(1);
    buffer[size++] = c;
  }

  private void need(int more) {
    if (size + more > buffer.length) {
      buffer = Arrays.copyOf(buffer, Math.max(buffer.length * 2, size + more));
    }
  }
}
