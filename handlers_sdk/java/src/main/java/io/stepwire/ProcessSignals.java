package io.stepwire;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;

/**
 * Handles signals of the process through {@code sun.misc.Signal}, which every JDK has and no other
 * class offers. It is used by reflection: a JVM without it, or one that reserves a signal ({@code
 * -Xrs}), keeps its own behaviour.
 */
final class ProcessSignals implements AutoCloseable {
  private final Map<Object, Object> before = new LinkedHashMap<>(); // handlers by signal
  private Method handle;

  /** {@code onSignal} receives the name of the signal, on a thread of the JVM. */
  ProcessSignals(Consumer<String> onSignal, String... names) {
    try {
      Class<?> signalType = Class.forName("sun.misc.Signal");
      Class<?> handlerType = Class.forName("sun.misc.SignalHandler");
      handle = signalType.getMethod("handle", signalType, handlerType);
      for (String name : names) {
        Object handler =
            Proxy.newProxyInstance(
                handlerType.getClassLoader(),
                new Class<?>[] {handlerType},
                (proxy, method, arguments) -> {
                  if (method.getName().equals("handle")) {
                    onSignal.accept(name);
                    return null;
                  }
                  return method.getName().equals("hashCode")
                      ? (Object) System.identityHashCode(proxy)
                      : method.getName().equals("equals") ? proxy == arguments[0] : name;
                });
        install(signalType.getConstructor(String.class).newInstance(name), handler);
      }
    } catch (ReflectiveOperationException absent) {
      // The JVM's own behaviour stays: TERM and INT end the process at once.
    }
  }

  private void install(Object signal, Object handler) throws IllegalAccessException {
    try {
      before.put(signal, handle.invoke(null, signal, handler));
    } catch (InvocationTargetException reserved) {
      // This JVM reserves the signal.
    }
  }

  @Override
  public void close() {
    before.forEach(
        (signal, handler) -> {
          try {
            install(signal, handler);
          } catch (IllegalAccessException impossible) {
            throw new AssertionError(impossible);
          }
        });
  }
}
