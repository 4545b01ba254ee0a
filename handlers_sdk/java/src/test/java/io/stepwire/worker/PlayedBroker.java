package io.stepwire.worker;

import static org.junit.jupiter.api.Assertions.assertNotNull;

import io.stepwire.protocol.Json;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;
import org.zeromq.ZMQ.Socket;

/** A broker on real sockets, played by a test in the test's own thread. */
public final class PlayedBroker implements AutoCloseable {
  private static final long WAIT_MS = 10_000;

  private final ZContext context = new ZContext();
  private final Socket pub;
  private final Socket sub;
  private final ZMQ.Curve.KeyPair keys;
  private final int epoch;
  private final int stepsPort;
  private final int resultsPort;
  private String worker;
  private String session;
  private int batches;

  /** {@code keys} is null without CURVE. */
  public PlayedBroker(ZMQ.Curve.KeyPair keys) {
    this(keys, 7, 0, 0);
  }

  private PlayedBroker(ZMQ.Curve.KeyPair keys, int epoch, int stepsPort, int resultsPort) {
    this.keys = keys;
    this.epoch = epoch;
    pub = socket(SocketType.PUB);
    sub = socket(SocketType.SUB);
    for (String topic : new String[] {"workers ", "results ", "results@b1 "}) {
      sub.subscribe(topic);
    }
    this.stepsPort = bind(pub, stepsPort);
    this.resultsPort = bind(sub, resultsPort);
  }

  private Socket socket(SocketType type) {
    Socket socket = context.createSocket(type);
    socket.setLinger(0);
    if (keys != null) {
      socket.setCurveServer(true);
      socket.setCurvePublicKey(ZMQ.Curve.z85Decode(keys.publicKey));
      socket.setCurveSecretKey(ZMQ.Curve.z85Decode(keys.secretKey));
    }
    return socket;
  }

  private static int bind(Socket socket, int port) {
    if (port == 0) {
      return socket.bindToRandomPort("tcp://127.0.0.1");
    }
    socket.bind("tcp://127.0.0.1:" + port);
    return port;
  }

  public String steps() {
    return "tcp://127.0.0.1:" + stepsPort;
  }

  public String results() {
    return "tcp://127.0.0.1:" + resultsPort;
  }

  public String session() {
    return session;
  }

  /** The same broker after a restart: with a new epoch, at the same endpoints. */
  public PlayedBroker restarted() {
    close();
    PlayedBroker next = new PlayedBroker(keys, epoch + 1, stepsPort, resultsPort);
    next.worker = worker;
    return next;
  }

  /** Answers hellos until the worker heartbeats in the session. */
  public void welcome(long leaseMs) {
    while (true) {
      Map<?, ?> message = next(null);
      if ("heartbeat".equals(message.get("type")) && message.get("sessions") != null) {
        acknowledge(message);
        return;
      }
      if (!"hello".equals(message.get("type"))) {
        continue;
      }
      worker = (String) message.get("worker");
      Map<?, ?> next = message.get("next") instanceof Map<?, ?> map ? map : Map.of();
      if (!next.containsKey("b1")) {
        send(message("here", "deployment", "d1", "versions", List.of("2.0")));
        continue;
      }
      session = epoch + "." + next.get("b1");
      send(
          message(
              "welcome",
              "session",
              session,
              "deployment",
              "d1",
              "n",
              message.get("n"),
              "lease_ms",
              leaseMs,
              "heartbeat_ms",
              leaseMs / 5,
              "max_message_bytes",
              4_194_304));
    }
  }

  public void acknowledge(Map<?, ?> heartbeat) {
    send(message("heartbeat_ack", "session", session, "n", heartbeat.get("n")));
  }

  public void acknowledgeResults(Map<?, ?> results) {
    send(message("ack", "rids", List.of(results.get("rid"))));
  }

  public void step(long id, String handler, String context) {
    step(id, handler, context, Map.of());
  }

  /** {@code members}: others of the step. */
  public void step(long id, String handler, String context, Map<String, Object> members) {
    Map<String, Object> metadata = new LinkedHashMap<>();
    metadata.put("attempt", 0);
    metadata.put("retry_limit", 3);
    metadata.put("timeout_ms", 30_000);
    metadata.put("idempotency_key", "k/" + id);
    Map<String, Object> step = new LinkedHashMap<>();
    step.put("step_id", id);
    step.put("task_id", 1);
    step.put("step_name", "work");
    step.put("handler_class", handler);
    step.put("task_context", Json.parse(context));
    step.put("delivery", 1);
    step.put("metadata", metadata);
    step.putAll(members);
    send(
        message(
            "steps",
            "session",
            session,
            "batch_id",
            "batch_t_" + ++batches,
            "protocol_version",
            "2.0",
            "steps",
            List.of(step)));
  }

  /** The result of one step, acknowledged. */
  public Map<?, ?> result(long id) {
    while (true) {
      Map<?, ?> results = next("results");
      acknowledgeResults(results);
      for (Object each : (List<?>) results.get("results")) {
        if (each instanceof Map<?, ?> result && result.get("step_id").equals(id)) {
          return result;
        }
      }
    }
  }

  /** The next message of this type; null: of any type. Fails after a while. */
  public Map<?, ?> next(String type) {
    long untilMs = System.nanoTime() / 1_000_000 + WAIT_MS;
    while (true) {
      sub.setReceiveTimeOut((int) Math.max(1, untilMs - System.nanoTime() / 1_000_000));
      byte[] frame = sub.recv();
      assertNotNull(frame, "no " + type + " in time");
      String text = new String(frame, StandardCharsets.UTF_8);
      Map<?, ?> message = (Map<?, ?>) Json.parse(text.substring(text.indexOf(' ') + 1));
      if (type == null || type.equals(message.get("type"))) {
        return message;
      }
    }
  }

  private Map<String, Object> message(String type, Object... members) {
    Map<String, Object> message = new LinkedHashMap<>();
    message.put("type", type);
    message.put("v", "2.0");
    message.put("broker", "b1");
    message.put("epoch", epoch);
    for (int i = 0; i < members.length; i += 2) {
      message.put((String) members[i], members[i + 1]);
    }
    return message;
  }

  private void send(Map<String, Object> message) {
    pub.send("@" + worker + " " + Json.text(message));
  }

  @Override
  public void close() {
    context.close();
  }
}
