package io.stepwire.protocol;

import io.stepwire.ConfigurationError;
import io.stepwire.JsonName;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/** A record as a JSON object: its members, in order, and its constructor. */
final class RecordType {
  private static final ClassValue<RecordType> KNOWN =
      new ClassValue<>() {
        @Override
        protected RecordType computeValue(Class<?> type) {
          return new RecordType(type);
        }
      };

  /** One component of a record. */
  record Field(String name, Type type, Method accessor) {
    Object read(Record record) {
      try {
        return accessor.invoke(record);
      } catch (IllegalAccessException fault) {
        throw notAccessible(record.getClass(), fault);
      } catch (InvocationTargetException fault) {
        throw new InvalidMessage(
            "not_json", "the accessor " + accessor.getName() + "() failed: " + fault.getCause());
      }
    }
  }

  private final Constructor<?> constructor;
  private final List<Field> fields = new ArrayList<>();

  static RecordType of(Class<?> type) {
    return KNOWN.get(type);
  }

  private RecordType(Class<?> type) {
    RecordComponent[] components = type.getRecordComponents();
    Class<?>[] parameters = new Class<?>[components.length];
    try {
      for (int i = 0; i < components.length; i++) {
        RecordComponent component = components[i];
        parameters[i] = component.getType();
        Method accessor = component.getAccessor();
        accessor.setAccessible(true);
        fields.add(new Field(nameOf(component), component.getGenericType(), accessor));
      }
      constructor = type.getDeclaredConstructor(parameters);
      constructor.setAccessible(true);
    } catch (NoSuchMethodException | RuntimeException fault) {
      throw notAccessible(type, fault);
    }
  }

  List<Field> fields() {
    return fields;
  }

  /** A record with these values. An exception of its own constructor says what does not fit. */
  Object create(Object[] values) throws InvocationTargetException {
    try {
      return constructor.newInstance(values);
    } catch (InstantiationException | IllegalAccessException fault) {
      throw notAccessible(constructor.getDeclaringClass(), fault);
    }
  }

  private static String nameOf(RecordComponent component) {
    JsonName given = component.getAnnotation(JsonName.class);
    if (given != null) {
      return given.value();
    }
    return component.getName().replaceAll("([a-z0-9])([A-Z])", "$1_$2").toLowerCase(Locale.ROOT);
  }

  private static ConfigurationError notAccessible(Class<?> type, Exception fault) {
    return new ConfigurationError(
        "the record "
            + type.getName()
            + " cannot be read or written as JSON: open its package to io.stepwire ("
            + fault.getMessage()
            + ")");
  }
}
