package io.stepwire.session;

import io.stepwire.protocol.Codec;
import io.stepwire.protocol.FromWorker;
import io.stepwire.protocol.Limits;
import io.stepwire.protocol.Topics;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The actions decided so far, in their order, and the counter {@code n} of the messages sent. */
final class Outgoing {
  /** Hellos and heartbeats whose send time is remembered: for minutes; a lease lasts seconds. */
  private static final int SENT_MAX = 128;

  private final String worker;
  private final Map<Long, Double> sentMs = new LinkedHashMap<>(); // by n
  private long n; // the last number used
  private List<Action> actions = new ArrayList<>();

  Outgoing(String worker) {
    this.worker = worker;
  }

  void add(Action action) {
    actions.add(action);
  }

  /** Facts are names and values in turn. */
  void log(Action.Level level, String event, Object... facts) {
    Map<String, Object> named = new LinkedHashMap<>();
    for (int i = 0; i < facts.length; i += 2) {
      named.put((String) facts[i], facts[i + 1]);
    }
    actions.add(new Action.Log(level, event, named));
  }

  void send(byte[] frame) {
    actions.add(new Action.Send(frame));
  }

  byte[] frame(byte[] topic, FromWorker message) {
    return Codec.frame(topic, worker, message);
  }

  void sendTo(BrokerPeer peer, FromWorker message) {
    send(frame(peer.topic, message));
  }

  void sendToAll(FromWorker message) {
    send(frame(Topics.WORKERS, message));
  }

  boolean isEmpty() {
    return actions.isEmpty();
  }

  /** The actions decided since the last call. */
  List<Action> take() {
    if (actions.isEmpty()) {
      return List.of();
    }
    List<Action> taken = actions;
    actions = new ArrayList<>();
    return taken;
  }

  /** The last number used. */
  long n() {
    return n;
  }

  long nextN() {
    return ++n;
  }

  /**
   * The next number, for a message that brokers echo. The lease starts at the send time of this
   * message.
   */
  long nextTimedN(double nowMs) {
    long number = nextN();
    sentMs.put(number, nowMs);
    if (sentMs.size() > SENT_MAX) {
      sentMs.remove(sentMs.keySet().iterator().next());
    }
    return number;
  }

  /** The send time of the hello or heartbeat with this number; NaN if unknown or too old. */
  double sentMs(long number) {
    Double at = sentMs.get(number);
    return at == null ? Double.NaN : at;
  }

  /** Splits the items into lists that fit into one message. */
  static <T> List<List<T>> parts(List<T> items) {
    if (items.size() <= Limits.BATCH_ITEMS_MAX) {
      return List.of(items);
    }
    List<List<T>> parts = new ArrayList<>();
    for (int i = 0; i < items.size(); i += Limits.BATCH_ITEMS_MAX) {
      parts.add(items.subList(i, Math.min(items.size(), i + Limits.BATCH_ITEMS_MAX)));
    }
    return parts;
  }
}
