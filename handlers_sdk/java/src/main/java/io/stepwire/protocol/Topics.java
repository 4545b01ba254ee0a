package io.stepwire.protocol;

import java.nio.charset.StandardCharsets;

/**
 * Topics. A frame is a topic, one space, JSON. The constants and subscriptions of topics include
 * that space: without it, a subscription of {@code results@b1} would also receive the messages to
 * {@code results@b10}.
 */
public final class Topics {
  public static final byte[] BROKERS = bytes("brokers ");
  public static final byte[] RESULTS = bytes("results ");
  public static final byte[] WORKERS = bytes("workers ");

  private Topics() {}

  /** The topic of this worker. No other worker subscribes to it. */
  public static byte[] toWorker(String worker) {
    return bytes("@" + worker + " ");
  }

  /** The topic of this broker, for results of its steps. No other broker subscribes to it. */
  public static byte[] resultsTo(String broker) {
    return bytes("results@" + broker + " ");
  }

  /** True if the frame begins with this topic. */
  public static boolean isOf(byte[] frame, byte[] topic) {
    if (frame.length < topic.length) {
      return false;
    }
    for (int i = 0; i < topic.length; i++) {
      if (frame[i] != topic[i]) {
        return false;
      }
    }
    return true;
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }
}
