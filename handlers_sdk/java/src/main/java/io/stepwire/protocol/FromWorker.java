package io.stepwire.protocol;

import java.util.List;
import java.util.Map;

/** The messages of a worker, as SPEC.md, section 5, orders their members. */
public sealed interface FromWorker {
  /** The name of the message on the wire. */
  String type();

  /** Writes the members after {@code type}, {@code v} and {@code worker}. */
  void write(MessageWriter out);

  /** The worker introduces itself: at its start, after {@code here}, and after a drop. */
  record Hello(
      long n,
      Map<String, Long> next,
      Map<String, String> sessions,
      List<String> handlers,
      List<String> shadowSafe,
      Map<String, String> labels,
      int slots,
      int prefetch,
      Map<String, Integer> free,
      Map<String, Integer> slotsFree,
      List<HeldItem> holding,
      int heartbeatMs,
      String lang,
      String sdk,
      String handlerVersion,
      String host,
      long pid,
      long pidStarted,
      boolean proof,
      int maxMessageBytes)
      implements FromWorker {
    @Override
    public String type() {
      return "hello";
    }

    @Override
    public void write(MessageWriter out) {
      out.number("n", n);
      out.texts("versions", List.of(Limits.VERSIONS_SUPPORTED));
      out.numbersUnlessEmpty("next", next);
      out.textsByKeyUnlessEmpty("sessions", sessions);
      out.texts("handlers", handlers);
      out.textsUnlessEmpty("shadow_safe", shadowSafe);
      out.textsByKeyUnlessEmpty("labels", labels);
      out.number("slots", slots);
      out.numberUnless(0, "prefetch", prefetch);
      out.numbersUnlessEmpty("free", free);
      out.numbersUnlessEmpty("slots_free", slotsFree);
      if (!holding.isEmpty()) {
        out.heldItems("holding", holding);
      }
      out.numberUnless(Limits.HEARTBEAT_MS, "heartbeat_ms", heartbeatMs);
      out.textUnlessEmpty("lang", lang);
      out.textUnlessEmpty("sdk", sdk);
      out.textUnlessEmpty("handler_version", handlerVersion);
      out.textUnlessEmpty("host", host);
      out.numberUnless(0, "pid", pid);
      out.numberUnless(0, "pid_started", pidStarted);
      if (proof) {
        out.flag("proof", true);
      }
      out.numberUnless(Limits.MESSAGE_BYTES_MAX, "max_message_bytes", maxMessageBytes);
    }
  }

  /** The worker is alive. The ack with the same {@code n} renews the lease. */
  record Heartbeat(
      long n,
      Map<String, Long> next,
      Map<String, String> sessions,
      Map<String, Integer> free,
      Map<String, Integer> slotsFree,
      List<HeldItem> holding)
      implements FromWorker {
    @Override
    public String type() {
      return "heartbeat";
    }

    @Override
    public void write(MessageWriter out) {
      out.number("n", n);
      out.numbersUnlessEmpty("next", next);
      out.textsByKeyUnlessEmpty("sessions", sessions);
      out.numbersUnlessEmpty("free", free);
      out.numbersUnlessEmpty("slots_free", slotsFree);
      if (!holding.isEmpty()) {
        out.heldItems("holding", holding);
      }
    }
  }

  /** The worker accepts no new steps, and ends when it holds none. */
  record Bye(long n) implements FromWorker {
    @Override
    public String type() {
      return "bye";
    }

    @Override
    public void write(MessageWriter out) {
      out.numberUnless(0, "n", n);
    }
  }

  /** The worker has accepted the batch. */
  record Accept(String session, String batchId, int free, int slotsFree) implements FromWorker {
    @Override
    public String type() {
      return "accept";
    }

    @Override
    public void write(MessageWriter out) {
      out.text("session", session);
      out.text("batch_id", batchId);
      out.number("free", free);
      out.number("slots_free", slotsFree);
    }
  }

  /** The worker will not run these items of the batch. */
  record Refuse(
      String session, String batchId, List<Item> items, String code, int free, int slotsFree)
      implements FromWorker {
    @Override
    public String type() {
      return "refuse";
    }

    @Override
    public void write(MessageWriter out) {
      out.text("session", session);
      out.text("batch_id", batchId);
      out.items("items", items);
      out.text("code", code);
      out.numberUnless(0, "free", free);
      out.number("slots_free", slotsFree);
    }
  }

  /** The worker asks to run these at_most_once steps. None of them has started. */
  record Start(String session, List<Item> items) implements FromWorker {
    @Override
    public String type() {
      return "start";
    }

    @Override
    public void write(MessageWriter out) {
      out.text("session", session);
      out.items("items", items);
    }
  }

  /** Outcomes of steps of one batch. The ack names {@code rid}. */
  record Results(
      String session,
      String deployment,
      String batchId,
      long rid,
      long n,
      int free,
      int slotsFree,
      List<Result> results)
      implements FromWorker {
    @Override
    public String type() {
      return "results";
    }

    @Override
    public void write(MessageWriter out) {
      out.text("session", session);
      out.text("deployment", deployment);
      out.text("batch_id", batchId);
      out.text("protocol_version", Limits.PROTOCOL_LEVEL_1);
      out.number("rid", rid);
      out.numberUnless(0, "n", n);
      out.number("free", free);
      out.number("slots_free", slotsFree);
      out.list("results", results, result -> result.write(out));
    }

    /** The same message in another session. `n` and `free` stay: an old `n` marks old credit. */
    public Results in(String otherSession, String otherDeployment) {
      return new Results(otherSession, otherDeployment, batchId, rid, n, free, slotsFree, results);
    }
  }

  /** The states of the items that a broker named in {@code adopt}. */
  record Adopted(String session, List<HeldItem> items) implements FromWorker {
    @Override
    public String type() {
      return "adopted";
    }

    @Override
    public void write(MessageWriter out) {
      out.text("session", session);
      out.heldItems("items", items);
    }
  }

  /** The progress of running steps. Never resent. */
  record Progress(String session, List<ProgressItem> items) implements FromWorker {
    @Override
    public String type() {
      return "progress";
    }

    @Override
    public void write(MessageWriter out) {
      out.text("session", session);
      out.progressItems("items", items);
    }
  }
}
