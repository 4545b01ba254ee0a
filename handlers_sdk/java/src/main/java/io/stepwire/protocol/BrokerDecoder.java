package io.stepwire.protocol;

import io.stepwire.protocol.FromBroker.Ack;
import io.stepwire.protocol.FromBroker.Adopt;
import io.stepwire.protocol.FromBroker.Cancel;
import io.stepwire.protocol.FromBroker.Endpoints;
import io.stepwire.protocol.FromBroker.Go;
import io.stepwire.protocol.FromBroker.HeartbeatAck;
import io.stepwire.protocol.FromBroker.Here;
import io.stepwire.protocol.FromBroker.Refused;
import io.stepwire.protocol.FromBroker.Reset;
import io.stepwire.protocol.FromBroker.Steps;
import io.stepwire.protocol.FromBroker.Welcome;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/** Collects the members of one broker message, in any order, and builds the message. */
final class BrokerDecoder {
  static final Set<String> TYPES =
      Set.of(
          "here",
          "welcome",
          "heartbeat_ack",
          "steps",
          "go",
          "cancel",
          "ack",
          "adopt",
          "reset",
          "refused");
  private static final Set<String> REASONS =
      Set.of("not_granted", "timeout", "task_cancelled", "superseded");
  private static final Set<String> RESETS =
      Set.of("unknown_session", "expired", "version", "unauthorized", "shutdown");
  private static final int TEXT_MAX = Integer.MAX_VALUE;

  private final String type;
  private final boolean mayNeedOpening;
  String v;
  private String broker;
  private Long epoch;
  private String session;
  private String deployment;
  private String batchId;
  private String protocolVersion;
  private String reason;
  private String code;
  private String message;
  private String refused;
  private Long n;
  private Long leaseMs;
  private Long heartbeatMs;
  private Long bytesMax;
  private Long next;
  private long rid;
  private boolean hasVersions;
  private boolean quiet;
  private boolean quit;
  private List<Item> items;
  private List<Long> rids;
  private List<Endpoints> brokers;
  private List<StepRequest> steps;

  /** {@code mayNeedOpening}: see {@link StepRequest}. */
  BrokerDecoder(String type, boolean mayNeedOpening) {
    this.type = type;
    this.mayNeedOpening = mayNeedOpening;
  }

  /** Reads the value of the member at which the reader is. Members of other types are skipped. */
  void member(JsonReader in) {
    switch (in.name()) {
      case "v" -> v = version(in);
      case "broker" -> broker = Forms.broker(in.string());
      case "epoch" -> epoch = Forms.count(in);
      default -> {
        switch (type) {
          case "steps" -> stepsMember(in);
          case "ack" -> ackMember(in);
          case "heartbeat_ack" -> heartbeatAckMember(in);
          case "go", "cancel", "adopt" -> itemsMember(in);
          case "welcome" -> welcomeMember(in);
          case "here" -> hereMember(in);
          case "reset" -> resetMember(in);
          default -> refusedMember(in);
        }
      }
    }
  }

  FromBroker message() {
    need(broker, "broker");
    need(epoch, "epoch");
    return switch (type) {
      case "steps" ->
          new Steps(
              broker,
              epoch,
              need(session, "session"),
              need(batchId, "batch_id"),
              need(protocolVersion, "protocol_version"),
              need(steps, "steps"));
      case "ack" -> new Ack(broker, epoch, need(rids, "rids"));
      case "heartbeat_ack" ->
          new HeartbeatAck(
              broker, epoch, need(session, "session"), need(n, "n"), quiet, quit, brokers);
      case "go" -> new Go(broker, epoch, need(session, "session"), need(items, "items"));
      case "adopt" -> new Adopt(broker, epoch, need(session, "session"), need(items, "items"));
      case "cancel" ->
          new Cancel(
              broker,
              epoch,
              need(session, "session"),
              need(items, "items"),
              need(reason, "reason"));
      case "welcome" ->
          new Welcome(
              broker,
              epoch,
              need(session, "session"),
              need(deployment, "deployment"),
              need(n, "n"),
              need(leaseMs, "lease_ms"),
              need(heartbeatMs, "heartbeat_ms"),
              need(bytesMax, "max_message_bytes"),
              brokers == null ? List.of() : brokers);
      case "here" -> {
        need(hasVersions ? this : null, "versions");
        yield new Here(broker, epoch, need(deployment, "deployment"));
      }
      case "reset" -> new Reset(broker, epoch, need(next, "next"), need(code, "code"));
      default ->
          new Refused(broker, epoch, need(code, "code"), need(message, "message"), refused, rid);
    };
  }

  private void stepsMember(JsonReader in) {
    switch (in.name()) {
      case "session" -> session = Forms.session(in.string());
      case "batch_id" -> batchId = Forms.sized(in.string(), 1, 128, "batch_id");
      case "protocol_version" -> protocolVersion = in.string();
      case "steps" -> {
        steps = new ArrayList<>();
        in.beginArray();
        while (in.nextItem()) {
          steps.add(StepDecoder.read(in, mayNeedOpening));
        }
      }
      default -> in.skip(1);
    }
  }

  private void ackMember(JsonReader in) {
    if (in.name().equals("rids")) {
      rids = new ArrayList<>();
      in.beginArray();
      while (in.nextItem()) {
        rids.add(Forms.id(in));
      }
    } else {
      in.skip(1);
    }
  }

  private void heartbeatAckMember(JsonReader in) {
    switch (in.name()) {
      case "session" -> session = Forms.session(in.string());
      case "n" -> n = Forms.count(in);
      case "quiet" -> quiet = Forms.flag(in);
      case "quit" -> quit = Forms.flag(in);
      case "brokers" -> brokers = in.isNull() ? nothing(in) : endpoints(in);
      default -> in.skip(1);
    }
  }

  private void itemsMember(JsonReader in) {
    switch (in.name()) {
      case "session" -> session = Forms.session(in.string());
      case "items" -> items = items(in);
      case "reason" -> reason = type.equals("cancel") ? oneOf(REASONS, in) : skipped(in);
      default -> in.skip(1);
    }
  }

  private void welcomeMember(JsonReader in) {
    switch (in.name()) {
      case "session" -> session = Forms.session(in.string());
      case "deployment" -> deployment = in.string();
      case "n" -> n = Forms.count(in);
      case "lease_ms" -> leaseMs = Forms.id(in);
      case "heartbeat_ms" -> heartbeatMs = Forms.count(in);
      case "max_message_bytes" -> bytesMax = Forms.id(in);
      case "brokers" -> brokers = endpoints(in);
      default -> in.skip(1);
    }
  }

  private void hereMember(JsonReader in) {
    switch (in.name()) {
      case "deployment" -> deployment = in.string();
      case "versions" -> hasVersions = texts(in);
      default -> in.skip(1);
    }
  }

  private void resetMember(JsonReader in) {
    switch (in.name()) {
      case "next" -> next = Forms.count(in);
      case "code" -> code = oneOf(RESETS, in);
      case "versions" -> texts(in);
      default -> in.skip(1);
    }
  }

  private void refusedMember(JsonReader in) {
    switch (in.name()) {
      case "code" -> code = in.string();
      case "message" -> message = in.string();
      case "refused" -> refused = in.isNull() ? nothing(in) : in.string();
      case "rid" -> {
        if (in.isNull()) {
          in.nothing();
        } else {
          rid = in.integer();
        }
      }
      default -> in.skip(1);
    }
  }

  // -- values -------------------------------------------------------------------------------------

  private static List<Item> items(JsonReader in) {
    List<Item> items = new ArrayList<>();
    in.beginArray();
    while (in.nextItem()) {
      in.beginArray();
      in.nextItem();
      long stepId = Forms.id(in);
      long delivery = in.nextItem() ? Forms.id(in) : 0;
      if (delivery == 0 || in.nextItem()) {
        throw new InvalidMessage("bad_field", "an item must be a list of 2 items");
      }
      items.add(new Item(stepId, delivery));
      if (items.size() > Limits.BATCH_ITEMS_MAX) {
        throw new InvalidMessage(
            "bad_field", "`items` must have at most " + Limits.BATCH_ITEMS_MAX + " items");
      }
    }
    return items;
  }

  private static List<Endpoints> endpoints(JsonReader in) {
    List<Endpoints> entries = new ArrayList<>();
    in.beginArray();
    while (in.nextItem()) {
      String id = null;
      String steps = null;
      String results = null;
      String serverKey = null;
      in.beginObject();
      while (in.nextMember()) {
        switch (in.name()) {
          case "broker" -> id = in.string();
          case "steps" -> steps = in.string();
          case "results" -> results = in.string();
          case "server_key" -> serverKey = in.isNull() ? nothing(in) : Forms.key(in.string());
          default -> in.skip(3);
        }
      }
      entries.add(
          new Endpoints(
              need(id, "broker"), need(steps, "steps"), need(results, "results"), serverKey));
    }
    return entries;
  }

  private static boolean texts(JsonReader in) {
    in.beginArray();
    while (in.nextItem()) {
      Forms.sized(in.string(), 0, TEXT_MAX, "versions");
    }
    return true;
  }

  private static String oneOf(Set<String> words, JsonReader in) {
    String word = in.string();
    if (!words.contains(word)) {
      String shown = word.length() > 64 ? word.substring(0, 64) : word;
      throw new InvalidMessage("bad_field", "`" + in.name() + "` must not be " + shown);
    }
    return word;
  }

  private static String version(JsonReader in) {
    if (in.peek() != '"') {
      throw new InvalidMessage("unknown_version", "v is a string like 2.0");
    }
    return in.string();
  }

  @SuppressWarnings("unchecked")
  private static <T> T nothing(JsonReader in) {
    return (T) in.nothing();
  }

  private static String skipped(JsonReader in) {
    in.skip(1);
    return null;
  }

  static <T> T need(T member, String name) {
    if (member == null) {
      throw new InvalidMessage("bad_field", "`" + name + "` is missing");
    }
    return member;
  }
}
