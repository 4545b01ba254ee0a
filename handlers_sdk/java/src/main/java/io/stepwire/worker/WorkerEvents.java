package io.stepwire.worker;

import io.stepwire.CurveKeys;
import io.stepwire.Logs;
import io.stepwire.Texts;
import io.stepwire.session.Action.Level;
import io.stepwire.session.Link;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.logging.Logger;

/** The worker's events as log lines: one sentence each, for the logger {@code stepwire.worker}. */
final class WorkerEvents {
  private static final int LISTED_MAX = 5; // handlers that a line names
  private static final Logger LOG = Logger.getLogger(Logs.WORKER);
  private static final Map<String, String> DROPPED =
      Map.of(
          "lease_over", "lost broker %s: it has not answered for a whole lease",
          "unknown_session", "broker %s has ended the session: it no longer knows this worker",
          "expired",
              "broker %s has ended the session: it did not receive heartbeats of this worker in"
                  + " time",
          "version",
              "broker %s refuses this worker: they have no protocol version in common; use a"
                  + " broker and an SDK of the same release",
          "unauthorized", "broker %s refuses this worker: unauthorized",
          "shutdown", "broker %s shuts down",
          "deployment_replaced",
              "the session with broker %s has ended, because its database is another one");

  private final Map<String, String> epochs = new HashMap<>(); // of each broker's last session
  private final Function<String, Link> linkOf;

  private final CurveKeys keys;

  /** {@code keys} is null without CURVE. */
  WorkerEvents(Function<String, Link> linkOf, CurveKeys keys) {
    this.linkOf = linkOf;
    this.keys = keys;
  }

  /** Logs one event with its facts. */
  void log(Level level, String event, Map<String, Object> facts) {
    java.util.logging.Level number =
        switch (level) {
          case DEBUG -> java.util.logging.Level.FINE;
          case INFO -> java.util.logging.Level.INFO;
          case WARNING -> java.util.logging.Level.WARNING;
          case ERROR -> java.util.logging.Level.SEVERE;
        };
    String sentence = sentence(event, facts);
    if ("unauthorized".equals(facts.get("why")) || "unauthorized".equals(facts.get("code"))) {
      sentence += "; " + keyOf(keys);
    }
    if (LOG.isLoggable(number)) {
      LOG.log(number, Texts.clean(sentence));
    }
  }

  /** Logs the fault that ends the worker. */
  void logFailure(Throwable fault) {
    LOG.log(
        java.util.logging.Level.SEVERE,
        "the worker ends, because its socket thread has failed",
        fault);
  }

  /** How a refused worker names its key, and what to do. */
  static String keyOf(CurveKeys keys) {
    String key =
        keys == null ? "this worker has no key" : "this worker's public key is " + keys.publicKey();
    return key + "; on the broker's host see `stepwire keys list` and `stepwire keys allow`";
  }

  private String sentence(String event, Map<String, Object> facts) {
    Object broker = facts.get("broker");
    return switch (event) {
      case "worker_started" -> started(facts);
      case "worker_drains" -> drains((int) facts.get("running"));
      case "worker_ended" -> ended((int) facts.get("unacknowledged"));
      case "session_opened" -> opened(facts);
      case "session_dropped" -> dropped(facts);
      case "deployment_replaced" -> replaced(facts);
      case "steps_refused" ->
          "returned "
              + steps((int) facts.get("steps"))
              + " to broker "
              + broker
              + ": "
              + facts.get("code");
      case "message_unreadable" ->
          "a message of a broker cannot be read: " + facts.get("code") + ": " + facts.get("why");
      case "message_refused" ->
          "broker "
              + broker
              + " refused a message of this worker ("
              + facts.get("refused")
              + "): "
              + facts.get("code")
              + ": "
              + facts.get("message");
      case "link_rebuilt" -> "connecting to " + stepsOf(facts) + " again, because it is silent";
      case "link_moved" ->
          "connecting to broker " + broker + " at its new address " + stepsOf(facts);
      case "link_removed" -> "disconnected from broker " + broker + ", because no list names it";
      case "link_ignored" ->
          "a broker at "
              + stepsOf(facts)
              + " is not connected, because JeroMQ cannot connect to Unix sockets: give that"
              + " broker a tcp listener";
      case "server_key_changed" ->
          "connecting to broker " + broker + " again, because it has a new CURVE key";
      case "broker_ignored" ->
          "broker "
              + broker
              + " is not connected, because it requires CURVE keys: set STEPWIRE_CURVE_FILE";
      case "connect_failed" ->
          "cannot connect to " + facts.get("endpoint") + ": " + facts.get("error");
      case "no_broker" ->
          "no broker for "
              + facts.get("seconds")
              + " s: "
              + facts.get("endpoint")
              + ": "
              + facts.get("reason");
      default -> event + " " + facts;
    };
  }

  private static String stepsOf(Map<String, Object> facts) {
    return facts.get("link") instanceof Link link ? link.steps() : "?";
  }

  private String opened(Map<String, Object> facts) {
    String broker = (String) facts.get("broker");
    String session = (String) facts.get("session");
    String epoch = session.substring(0, session.indexOf('.'));
    String before = epochs.put(broker, epoch);
    Link link = linkOf.apply(broker);
    String at = link == null ? "" : " at " + link.steps();
    String again =
        before == null ? "" : before.equals(epoch) ? " again" : " again, after its restart";
    return "connected to broker " + broker + at + again;
  }

  private static String started(Map<String, Object> facts) {
    List<?> names = (List<?>) facts.get("handlers");
    String listed =
        String.join(", ", names.stream().limit(LISTED_MAX).map(String::valueOf).toList());
    int others = names.size() - LISTED_MAX;
    String more = others > 0 ? " and " + others + " more" : "";
    int slots = (int) facts.get("slots");
    return "started as "
        + facts.get("name")
        + ", process "
        + facts.get("pid")
        + ", "
        + (slots == 1 ? "1 slot" : slots + " slots")
        + "; offers "
        + listed
        + more;
  }

  private static String dropped(Map<String, Object> facts) {
    String why = (String) facts.get("why");
    String form = DROPPED.getOrDefault(why, "the session with broker %s has ended (" + why + ")");
    int notStarted = (int) facts.get("not_started");
    String rest =
        notStarted == 0
            ? ""
            : "; " + steps(notStarted) + " that had not started will run elsewhere";
    return form.replace("%s", String.valueOf(facts.get("broker"))) + rest;
  }

  private static String drains(int running) {
    return "stopping: "
        + (running == 0 ? "no step is running" : steps(running) + " may still finish");
  }

  private static String ended(int unacknowledged) {
    if (unacknowledged == 0) {
      return "the worker has ended";
    }
    return "the worker has ended, and no broker has acknowledged "
        + steps(unacknowledged)
        + ": they may run again";
  }

  private static String replaced(Map<String, Object> facts) {
    int lost = (int) facts.get("results_discarded");
    return "broker "
        + facts.get("broker")
        + " has another database ("
        + facts.get("deployment")
        + "): "
        + (lost == 1 ? "1 message" : lost + " messages")
        + " with results for the earlier one discarded";
  }

  private static String steps(int number) {
    return number == 1 ? "1 step" : number + " steps";
  }
}
