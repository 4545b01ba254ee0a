package io.stepwire.edge;

import io.stepwire.Texts;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;
import java.util.regex.Pattern;

/**
 * References to secrets: {@code {"$secret": "stripe/live"}} stands for a value that only the worker
 * can read.
 *
 * <p>A reference is an object with this one member. Its name is a relative path of plain file
 * names, so that a directory of files can hold the values.
 */
final class SecretReferences {
  private static final String MEMBER = "$secret";
  private static final int NAME_CHARS_MAX = 200;
  private static final int SHOWN_CHARS_MAX = 60;
  private static final String NAME_FORM =
      "names of letters, digits, _, - and ., joined by /, at most 200 characters; none begins"
          + " with . or -";
  private static final Pattern NAME =
      Pattern.compile("[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*");

  private SecretReferences() {}

  static boolean isName(Object name) {
    return name instanceof String text
        && text.length() <= NAME_CHARS_MAX
        && NAME.matcher(text).matches();
  }

  /**
   * A copy of the decoded value with what {@code valueOf} returns for each name in the place of its
   * reference. Throws {@link SecretUnavailable} for an object that has the member {@code $secret}
   * and is no reference.
   */
  static Object replaced(Object value, UnaryOperator<String> valueOf) {
    if (value instanceof Map<?, ?> members) {
      if (members.containsKey(MEMBER)) {
        return valueOf.apply(nameIn(members));
      }
      Map<Object, Object> copy = new LinkedHashMap<>();
      members.forEach((key, inner) -> copy.put(key, replaced(inner, valueOf)));
      return copy;
    }
    if (value instanceof List<?> items) {
      List<Object> copy = new ArrayList<>();
      items.forEach(inner -> copy.add(replaced(inner, valueOf)));
      return copy;
    }
    return value;
  }

  private static String nameIn(Map<?, ?> reference) {
    if (reference.size() > 1) {
      throw new SecretUnavailable(
          "a reference to a secret has the one member "
              + MEMBER
              + ": move the others out of this object");
    }
    Object name = reference.get(MEMBER);
    if (!isName(name)) {
      throw new SecretUnavailable(shown(name) + " is not the name of a secret: " + NAME_FORM);
    }
    return (String) name;
  }

  private static String shown(Object name) {
    if (!(name instanceof String text)) {
      return "a value that is no string";
    }
    boolean isShort = text.codePointCount(0, text.length()) <= SHOWN_CHARS_MAX;
    String cut =
        isShort ? text : text.substring(0, text.offsetByCodePoints(0, SHOWN_CHARS_MAX)) + "…";
    return Texts.repr(cut);
  }
}
