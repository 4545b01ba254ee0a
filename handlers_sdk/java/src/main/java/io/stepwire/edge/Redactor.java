package io.stepwire.edge;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The values of secrets to remove from texts, and what replaces each: {@code [secret name]}. */
final class Redactor {
  static final int VALUES_MAX = 1_000; // the latest resolved values; earlier ones are forgotten
  static final int OUTPUT_CHARS_MIN = 8; // of a value that is removed from an output
  private static final int LINE_CHARS_MIN = 4; // of one line of a value with several lines

  private final Map<String, String> names = new LinkedHashMap<>(); // by value, the latest last
  private volatile Forms forms;

  /** The texts to remove, with the names of their secrets. */
  private record Forms(Pattern pattern, Map<String, String> names) {}

  boolean isActive() {
    return forms != null;
  }

  /** Removes this value from now on. A value that was added again counts as the latest. */
  synchronized void add(String name, String value) {
    if (value.isEmpty() || name.equals(names.get(value))) {
      return;
    }
    names.remove(value);
    names.put(value, name);
    while (names.size() > VALUES_MAX) {
      names.remove(names.keySet().iterator().next());
    }
    Map<String, String> ofForm = new HashMap<>();
    names.forEach((known, of) -> formsOf(known).forEach(form -> ofForm.put(form, of)));
    List<String> longestFirst = new ArrayList<>(ofForm.keySet());
    longestFirst.sort(Comparator.comparingInt(String::length).reversed());
    String pattern = String.join("|", longestFirst.stream().map(Pattern::quote).toList());
    forms = new Forms(Pattern.compile(pattern), ofForm);
  }

  /** The texts in which a value occurs: itself, its lines, and both as a JSON string has them. */
  private static Set<String> formsOf(String value) {
    Set<String> plain = new LinkedHashSet<>(List.of(value, value.strip()));
    String[] lines = value.split("\\R");
    for (String line : lines) {
      String text = line.strip();
      if (lines.length > 1 && text.codePointCount(0, text.length()) >= LINE_CHARS_MIN) {
        plain.add(text);
      }
    }
    Set<String> all = new LinkedHashSet<>();
    for (String text : plain) {
      if (!text.isEmpty()) {
        all.add(text);
        all.add(escaped(text));
      }
    }
    return all;
  }

  private static String escaped(String text) {
    return text.replace("\\", "\\\\")
        .replace("\"", "\\\"")
        .replace("\n", "\\n")
        .replace("\r", "\\r")
        .replace("\t", "\\t");
  }

  /** The text with the names of secrets in the place of their values. */
  String redact(String text) {
    Forms current = forms;
    if (current == null || text == null) {
      return text;
    }
    return current
        .pattern
        .matcher(text)
        .replaceAll(
            found ->
                Matcher.quoteReplacement("[secret " + current.names.get(found.group()) + "]"));
  }

  /** A copy of a decoded JSON value without the secrets' values in its strings and keys. */
  Object redacted(Object value) {
    if (value instanceof String text) {
      return redact(text);
    }
    if (value instanceof Map<?, ?> members) {
      Map<String, Object> copy = new LinkedHashMap<>();
      members.forEach((key, inner) -> copy.put(redact((String) key), redacted(inner)));
      return copy;
    }
    if (value instanceof List<?> items) {
      List<Object> copy = new ArrayList<>();
      items.forEach(inner -> copy.add(redacted(inner)));
      return copy;
    }
    return value;
  }
}
