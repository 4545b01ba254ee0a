package io.stepwire.driver;

import io.stepwire.protocol.HeldItem;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.Json;
import io.stepwire.protocol.ProgressItem;
import io.stepwire.protocol.Result;
import io.stepwire.runners.RunSlots;
import io.stepwire.session.Action;
import io.stepwire.session.Config;
import io.stepwire.session.Run;
import io.stepwire.session.Session;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * The session and the run slots of this SDK behind stdin and stdout. Each line on stdin is one op,
 * and each line on stdout its reply: {@code protocol/conformance/DRIVER.md} has both. The clock is
 * the time in the ops, and no socket, thread or handler is involved.
 */
public final class Driver {
  private final Map<Item, Run> running = new HashMap<>();
  private final List<Run> begun = new ArrayList<>(); // since the last action that was written
  private Session session;
  private RunSlots<Run> slots;

  private Driver() {}

  /** Answers each line until the input ends. */
  public static void main(String[] arguments) throws IOException {
    Driver driver = new Driver();
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream replies = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    String line;
    while ((line = lines.readLine()) != null) {
      replies.write(Json.encode(driver.replyTo(line)));
      replies.write('\n');
      replies.flush();
    }
  }

  /** A fault of the session is the reply to the op that caused it. */
  private Map<String, Object> replyTo(String line) {
    try {
      return handle(new Op(line));
    } catch (RuntimeException | AssertionError fault) {
      fault.printStackTrace();
      return Map.of("error", String.valueOf(fault));
    }
  }

  private Map<String, Object> handle(Op op) {
    double nowMs = op.number("now_ms");
    switch (op.text("op")) {
      case "start" -> start(op.config(), nowMs);
      case "receive" -> receive(op, nowMs);
      case "tick" -> {
        // The reply has the actions that are due.
      }
      case "complete" -> finish(op.completed(), nowMs);
      case "fail" -> finish(op.failed(), nowMs);
      case "progress" -> progress(op.progress(), nowMs);
      case "quiet" -> session.quiet(nowMs);
      case "full" -> session.full(op.flag("is_full"), nowMs);
      case "drain" -> session.drain(nowMs);
      case "expel" -> session.expel();
      default -> {
        return Map.of("error", "unknown op '" + op.text("op") + "'");
      }
    }
    Map<String, Object> reply = new LinkedHashMap<>();
    reply.put("actions", actions(nowMs));
    double wakeAtMs = session.wakeAt();
    reply.put("wake_at_ms", wakeAtMs == Session.NEVER ? null : Math.max(nowMs, wakeAtMs));
    reply.put("holding", session.holding(nowMs).stream().map(Driver::held).toList());
    return reply;
  }

  private static List<Object> held(HeldItem held) {
    return List.of(held.item().stepId(), held.item().delivery(), held.state(), held.ageMs());
  }

  // -- the ops ------------------------------------------------------------------------------------

  private void start(Config config, double nowMs) {
    session = new Session(config, () -> 0.5);
    slots = new RunSlots<>(config.slots, config.offers, Run::offer);
    running.clear();
    begun.clear();
    session.start(nowMs);
  }

  private void receive(Op op, double nowMs) {
    byte[] frame =
        op.has("frame_base64")
            ? Base64.getDecoder().decode(op.text("frame_base64"))
            : op.text("frame").getBytes(StandardCharsets.UTF_8);
    session.receive(frame, nowMs);
  }

  /** Ends a run, and begins the one that gets its slot. A run that has not begun cannot end. */
  private void finish(Result result, double nowMs) {
    Run run = running.remove(result.item());
    if (run == null) {
      return;
    }
    Run following = slots.release(run);
    session.finished(result.item(), result, nowMs);
    begin(following, nowMs);
  }

  private void progress(ProgressItem report, double nowMs) {
    if (running.containsKey(report.item())) {
      session.progressed(report, nowMs);
    }
  }

  // -- the actions --------------------------------------------------------------------------------

  /**
   * Does as a runner does: begins a run that has a slot, or gives its step back and begins the next
   * one.
   */
  private void begin(Run run, double nowMs) {
    Run following = run;
    while (following != null) {
      if (following.begin(nowMs)) {
        running.put(following.item(), following);
        begun.add(following);
        return;
      }
      Run ended = following;
      following = slots.release(ended);
      session.giveBack(ended.item(), nowMs);
    }
  }

  /** The due actions. A run is written when it begins, which may be long after its hand-over. */
  private List<Object> actions(double nowMs) {
    List<Object> written = new ArrayList<>();
    takeBegun(written);
    for (Action action : session.actions(nowMs)) {
      if (action instanceof Run run) {
        slots.add(List.of(run)).forEach(each -> begin(each, nowMs));
        takeBegun(written);
      } else {
        written.add(line(action));
      }
    }
    return written;
  }

  private void takeBegun(List<Object> written) {
    for (Run run : begun) {
      written.add(named("run", "step_id", run.item().stepId(), "delivery", run.item().delivery()));
    }
    begun.clear();
  }

  /** The action as the kit reads it. */
  private static Map<String, Object> line(Action action) {
    if (action instanceof Action.Send send) {
      return named("send", "frame", new String(send.frame(), StandardCharsets.UTF_8));
    }
    if (action instanceof Action.CancelRun cancel) {
      Item item = cancel.item();
      Object reason = cancel.reason();
      return named(
          "request_stop", "step_id", item.stepId(), "delivery", item.delivery(), "reason", reason);
    }
    if (action instanceof Action.Connect connect) {
      return named(
          "connect",
          "steps",
          connect.link().steps(),
          "results",
          connect.link().results(),
          "server_key",
          connect.serverKey());
    }
    if (action instanceof Action.Disconnect disconnect) {
      return named(
          "disconnect", "steps", disconnect.link().steps(), "results", disconnect.link().results());
    }
    if (action instanceof Action.Rebuild rebuild) {
      return named("rebuild", "steps", rebuild.link().steps(), "results", rebuild.link().results());
    }
    if (action instanceof Action.Quit) {
      return named("quit");
    }
    if (action instanceof Action.Log log) {
      String level = log.level().name().toLowerCase(Locale.ROOT);
      return named("log", "level", level, "event", log.event());
    }
    return named("log", "level", "error", "event", "run_failed"); // ResultTooLarge
  }

  private static Map<String, Object> named(String action, Object... members) {
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("action", action);
    for (int i = 0; i < members.length; i += 2) {
      line.put((String) members[i], members[i + 1]);
    }
    return line;
  }
}
