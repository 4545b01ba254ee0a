package io.stepwire.protocol;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads a value as Java objects, with the rules that hold inside business data. */
final class JsonTree {
  private final JsonReader in;
  private final int depthMax;
  private int containers;

  private JsonTree(JsonReader in, int depthMax) {
    this.in = in;
    this.depthMax = depthMax;
  }

  static Object read(JsonReader in) {
    return read(in, Limits.DEPTH_MAX);
  }

  /** For the files of the vectors, in which whole messages are nested. */
  static Object read(JsonReader in, int depthMax) {
    return new JsonTree(in, depthMax).value(0);
  }

  private Object value(int depth) {
    return switch (in.peek()) {
      case '{' -> object(open(depth));
      case '[' -> array(open(depth));
      case '"' -> text();
      case 't', 'f' -> in.bool();
      case 'n' -> in.nothing();
      default -> in.number();
    };
  }

  private int open(int depth) {
    if (depth >= depthMax) {
      throw JsonReader.tooDeep();
    }
    if (++containers > Limits.CONTAINERS_MAX) {
      throw new InvalidMessage(
          "too_large", "more than " + Limits.CONTAINERS_MAX + " arrays and objects");
    }
    return depth + 1;
  }

  private Map<String, Object> object(int depth) {
    Map<String, Object> members = new LinkedHashMap<>();
    in.beginObject();
    while (in.nextMember()) {
      String name = withoutNul(in.name());
      int before = members.size();
      members.put(name, value(depth));
      if (members.size() == before) {
        String shown = name.length() > 64 ? name.substring(0, 64) : name;
        throw new InvalidMessage(
            "duplicate_key", "the key '" + shown + "' occurs twice in one object");
      }
    }
    return members;
  }

  private List<Object> array(int depth) {
    List<Object> items = new ArrayList<>();
    in.beginArray();
    while (in.nextItem()) {
      items.add(value(depth));
    }
    return items;
  }

  private String text() {
    return withoutNul(in.string());
  }

  private static String withoutNul(String text) {
    if (text.indexOf('\0') >= 0) {
      throw new InvalidMessage(
          "nul_character", "a string holds U+0000, which databases cannot store");
    }
    return text;
  }
}
