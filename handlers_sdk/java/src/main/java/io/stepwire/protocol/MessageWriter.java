package io.stepwire.protocol;

import java.util.Collection;
import java.util.Map;
import java.util.function.Consumer;

/** Writes the members of a message in order, with their commas. */
final class MessageWriter {
  private final JsonWriter out;
  private boolean isFirst = true;

  MessageWriter(byte[] topic, int capacity) {
    out = new JsonWriter(capacity);
    out.bytes(topic, 0, topic.length);
  }

  byte[] toBytes() {
    return out.toBytes();
  }

  void begin() {
    out.ascii("{");
    isFirst = true;
  }

  void end() {
    out.ascii("}");
    isFirst = false;
  }

  void name(String name) {
    out.ascii(isFirst ? "\"" : ",\"");
    isFirst = false;
    out.ascii(name);
    out.ascii("\":");
  }

  void text(String name, String value) {
    name(name);
    out.string(value);
  }

  void textOrAbsent(String name, String value) {
    if (value != null) {
      text(name, value);
    }
  }

  /** A text whose default is empty. */
  void textUnlessEmpty(String name, String value) {
    if (!value.isEmpty()) {
      text(name, value);
    }
  }

  void number(String name, long value) {
    name(name);
    out.integer(value);
  }

  void numberUnless(long standard, String name, long value) {
    if (value != standard) {
      number(name, value);
    }
  }

  void flag(String name, boolean value) {
    name(name);
    out.ascii(value ? "true" : "false");
  }

  void nothing(String name) {
    name(name);
    out.ascii("null");
  }

  void json(String name, byte[] value) {
    name(name);
    out.bytes(value, 0, value.length);
  }

  void any(String name, Object value) {
    name(name);
    out.value(value);
  }

  void texts(String name, Collection<String> values) {
    list(name, values, out::string);
  }

  void textsUnlessEmpty(String name, Collection<String> values) {
    if (!values.isEmpty()) {
      texts(name, values);
    }
  }

  void numbersUnlessEmpty(String name, Map<String, ? extends Number> values) {
    if (!values.isEmpty()) {
      name(name);
      begin();
      values.forEach(
          (key, value) -> {
            keyOf(key);
            out.integer(value.longValue());
          });
      end();
    }
  }

  void textsByKeyUnlessEmpty(String name, Map<String, String> values) {
    if (!values.isEmpty()) {
      name(name);
      begin();
      values.forEach(
          (key, value) -> {
            keyOf(key);
            out.string(value);
          });
      end();
    }
  }

  <T> void list(String name, Collection<T> values, Consumer<T> write) {
    name(name);
    String separator = "[";
    for (T value : values) {
      out.ascii(separator);
      write.accept(value);
      separator = ",";
    }
    out.ascii(values.isEmpty() ? "[]" : "]");
  }

  void items(String name, Collection<Item> items) {
    list(
        name,
        items,
        item -> {
          ids(item);
          out.ascii("]");
        });
  }

  void heldItems(String name, Collection<HeldItem> items) {
    list(
        name,
        items,
        held -> {
          ids(held.item());
          out.ascii(",\"");
          out.ascii(held.state());
          out.ascii("\",");
          out.integer(held.ageMs());
          out.ascii("]");
        });
  }

  void progressItems(String name, Collection<ProgressItem> items) {
    list(
        name,
        items,
        each -> {
          ids(each.item());
          out.ascii(",");
          out.value(each.done());
          out.ascii(",");
          out.value(each.total());
          out.ascii(",");
          out.value(each.note());
          out.ascii("]");
        });
  }

  private void ids(Item item) {
    out.ascii("[");
    out.integer(item.stepId());
    out.ascii(",");
    out.integer(item.delivery());
  }

  private void keyOf(String key) {
    out.ascii(isFirst ? "" : ",");
    isFirst = false;
    out.member(key);
  }
}
