package io.stepwire.protocol;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.lang.reflect.WildcardType;
import java.math.BigDecimal;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;

/**
 * Gives decoded JSON the type that a handler declares: records, lists, maps, {@code Optional},
 * numbers, text, enums. A value of another type is refused with a sentence that names its place.
 * Members that a record does not have are ignored; a missing or null member is refused unless it is
 * an {@code Optional}.
 */
public final class Typed {
  private Typed() {}

  /** The value as {@code type}. Throws {@link InvalidMessage} with code {@code bad_field}. */
  public static Object convert(Object value, Type type) {
    return convert(value, type, "");
  }

  private static Object convert(Object value, Type type, String place) {
    if (type instanceof ParameterizedType generic) {
      return generic(value, generic, place);
    }
    if (type instanceof WildcardType wildcard) {
      return convert(value, wildcard.getUpperBounds()[0], place);
    }
    if (!(type instanceof Class<?> plain) || plain == Object.class) {
      return value;
    }
    if (value == null) {
      throw wrong(place, "must be " + kindOf(plain) + ", not null");
    }
    if (plain.isRecord()) {
      return record(value, plain, place);
    }
    if (plain == Optional.class) {
      return Optional.of(value);
    }
    Object simple = simple(value, plain, place);
    if (simple == null) {
      throw wrong(place, "must be " + kindOf(plain) + ", not " + nameOf(value));
    }
    return simple;
  }

  private static Object generic(Object value, ParameterizedType type, String place) {
    Class<?> raw = (Class<?>) type.getRawType();
    Type[] parameters = type.getActualTypeArguments();
    if (raw == Optional.class) {
      return Optional.ofNullable(value == null ? null : convert(value, parameters[0], place));
    }
    if (raw.isAssignableFrom(ArrayList.class) && Collection.class.isAssignableFrom(raw)) {
      if (!(value instanceof List<?> items)) {
        throw wrong(place, "must be a list, not " + nameOf(value));
      }
      List<Object> converted = new ArrayList<>(items.size());
      for (int i = 0; i < items.size(); i++) {
        converted.add(convert(items.get(i), parameters[0], place + "[" + i + "]"));
      }
      return converted;
    }
    if (raw.isAssignableFrom(LinkedHashMap.class) && parameters[0] == String.class) {
      if (!(value instanceof Map<?, ?> map)) {
        throw wrong(place, "must be an object, not " + nameOf(value));
      }
      Map<Object, Object> converted = new LinkedHashMap<>();
      map.forEach((k, v) -> converted.put(k, convert(v, parameters[1], at(place, "" + k))));
      return converted;
    }
    throw wrong(place, "has the type " + type + ", which cannot be read from JSON");
  }

  private static Object record(Object value, Class<?> type, String place) {
    if (!(value instanceof Map<?, ?> members)) {
      throw wrong(place, "must be an object, not " + nameOf(value));
    }
    RecordType form = RecordType.of(type);
    Object[] arguments = new Object[form.fields().size()];
    for (int i = 0; i < arguments.length; i++) {
      RecordType.Field field = form.fields().get(i);
      String inner = at(place, field.name());
      Object member = members.get(field.name());
      if (member == null && !members.containsKey(field.name()) && !isOptional(field.type())) {
        throw wrong(inner, "is missing");
      }
      arguments[i] = convert(member, field.type(), inner);
    }
    try {
      return form.create(arguments);
    } catch (InvocationTargetException fault) {
      throw wrong(place, "does not fit " + type.getSimpleName() + ": " + fault.getCause());
    }
  }

  private static boolean isOptional(Type type) {
    return type == Optional.class
        || type == Object.class
        || (type instanceof ParameterizedType generic && generic.getRawType() == Optional.class);
  }

  /** Null if the value does not fit. */
  private static Object simple(Object value, Class<?> type, String place) {
    if (value instanceof Long number) {
      return whole(number, type, place);
    }
    if (value instanceof Double number) {
      if (type == float.class || type == Float.class) {
        return number.floatValue();
      }
      if (type == BigDecimal.class) {
        return BigDecimal.valueOf(number);
      }
      return type.isAssignableFrom(Double.class) || type == double.class ? number : null;
    }
    if (value instanceof String text) {
      return text(text, type, place);
    }
    if (type == boolean.class) {
      return value instanceof Boolean ? value : null;
    }
    return type.isInstance(value) ? value : null;
  }

  private static Object whole(long number, Class<?> type, String place) {
    if (type == long.class || type.isAssignableFrom(Long.class)) {
      return number;
    }
    if (type == double.class || type == Double.class) {
      return (double) number;
    }
    if (type == float.class || type == Float.class) {
      return (float) number;
    }
    if (type == BigDecimal.class) {
      return BigDecimal.valueOf(number);
    }
    if (type == int.class || type == Integer.class) {
      if (number != (int) number) {
        throw wrong(place, "is outside the range of an int: declare a long");
      }
      return (int) number;
    }
    return null;
  }

  private static Object text(String text, Class<?> type, String place) {
    if (type.isAssignableFrom(String.class)) {
      return text;
    }
    if (type.isEnum()) {
      for (Object constant : type.getEnumConstants()) {
        if (((Enum<?>) constant).name().equals(text)) {
          return constant;
        }
      }
      String names = String.join(", ", names(type));
      throw wrong(place, "must be one of " + names + ", not " + text);
    }
    try {
      if (type == UUID.class) {
        return UUID.fromString(text);
      }
      if (type == Instant.class) {
        return Instant.parse(text);
      }
      if (type == LocalDate.class) {
        return LocalDate.parse(text);
      }
    } catch (IllegalArgumentException | DateTimeException fault) {
      throw wrong(place, "must be " + kindOf(type) + ": " + fault.getMessage());
    }
    return null;
  }

  private static List<String> names(Class<?> type) {
    return Arrays.stream(type.getEnumConstants()).map(each -> ((Enum<?>) each).name()).toList();
  }

  private static String kindOf(Class<?> type) {
    if (type == int.class || type == long.class || type == Integer.class || type == Long.class) {
      return "a whole number";
    }
    if (type == boolean.class || type == Boolean.class) {
      return "true or false";
    }
    if (type.isPrimitive() || Number.class.isAssignableFrom(type)) {
      return "a number";
    }
    if (CharSequence.class.isAssignableFrom(type)) {
      return "text";
    }
    if (Collection.class.isAssignableFrom(type)) {
      return "a list";
    }
    if (type.isRecord() || Map.class.isAssignableFrom(type)) {
      return "an object";
    }
    return "a " + type.getSimpleName();
  }

  private static String nameOf(Object value) {
    if (value == null) {
      return "null";
    }
    if (value instanceof Double) {
      return "a number with a fraction";
    }
    return kindOf(value.getClass()).replace("a whole number", "a number");
  }

  private static String at(String place, String member) {
    return place.isEmpty() ? member : place + "." + member;
  }

  private static InvalidMessage wrong(String place, String text) {
    String subject = place.isEmpty() ? "the input" : "`" + place + "`";
    return new InvalidMessage("bad_field", subject + " " + text);
  }
}
