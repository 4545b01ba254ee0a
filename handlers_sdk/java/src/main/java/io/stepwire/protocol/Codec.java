package io.stepwire.protocol;

import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;

/** Decodes the messages of brokers, and encodes the messages of workers. */
public final class Codec {
  private static final Pattern VERSION = Pattern.compile("2\\.[0-9]{1,4}");

  private Codec() {}

  /** The frame of a message: its topic, which ends with a space, and its JSON. */
  public static byte[] frame(byte[] topic, String worker, FromWorker message) {
    MessageWriter out = new MessageWriter(topic, 256);
    out.begin();
    out.text("type", message.type());
    out.text("v", Limits.PROTOCOL_LEVEL_1);
    out.text("worker", worker);
    message.write(out);
    out.end();
    return out.toBytes();
  }

  /**
   * Decodes the message of a frame whose JSON begins at {@code from}. Throws {@link
   * InvalidMessage}: the caller ignores the code {@code unknown_type}.
   */
  public static FromBroker decodeBroker(byte[] frame, int from) {
    String type = typeOf(frame, from);
    boolean mayNeedOpening =
        type.equals("steps") && Raw.mayNeedOpening(frame, from, frame.length); // once for all steps
    BrokerDecoder decoder = new BrokerDecoder(type, mayNeedOpening);
    JsonReader in = new JsonReader(frame, from, frame.length);
    if (in.peek() != '{') {
      throw new InvalidMessage("not_an_object", "the JSON is not an object");
    }
    in.beginObject();
    while (in.nextMember()) {
      decoder.member(in);
    }
    in.expectEnd();
    if (decoder.v == null) {
      throw new InvalidMessage("missing_version", "v is missing");
    }
    if (!decoder.v.equals(Limits.PROTOCOL_LEVEL_1) && !VERSION.matcher(decoder.v).matches()) {
      String shown = decoder.v.length() > 32 ? decoder.v.substring(0, 32) : decoder.v;
      throw new InvalidMessage(
          "unknown_version", "v is '" + shown + "', supported: " + Limits.PROTOCOL_LEVEL_1);
    }
    return decoder.message();
  }

  private static String typeOf(byte[] frame, int from) {
    JsonReader in = new JsonReader(frame, from, frame.length);
    if (in.peek() != '{') {
      in.skip(0);
      in.expectEnd();
      throw new InvalidMessage("not_an_object", "the JSON is not an object");
    }
    in.beginObject();
    while (in.nextMember()) {
      if (in.name().equals("type")) {
        String type = in.string();
        if (!BrokerDecoder.TYPES.contains(type)) {
          String shown = type.length() > 32 ? type.substring(0, 32) : type;
          throw new InvalidMessage("unknown_type", "type '" + shown + "'");
        }
        return type;
      }
      in.skip(1);
    }
    throw new InvalidMessage("bad_field", "`type` is missing");
  }

  /** The members of a {@code steps} message that a refusal needs. */
  public record Remains(String broker, String session, String batchId, List<Item> items) {}

  /** What can be read of a {@code steps} message that is invalid; null if that is not enough. */
  public static Remains remainsOf(byte[] frame, int from) {
    String type = "";
    String broker = "";
    String session = "";
    String batchId = "";
    List<Item> items = new ArrayList<>();
    try {
      JsonReader in = new JsonReader(frame, from, frame.length);
      in.beginObject();
      while (in.nextMember()) {
        switch (in.name()) {
          case "type" -> type = in.string();
          case "broker" -> broker = in.string();
          case "session" -> session = in.string();
          case "batch_id" -> batchId = in.string();
          case "steps" -> {
            items.clear();
            in.beginArray();
            while (in.nextItem()) {
              items.add(itemOf(in));
            }
          }
          default -> in.skip(1);
        }
      }
      in.expectEnd();
    } catch (InvalidMessage unreadable) {
      return null;
    }
    boolean isEnough = type.equals("steps") && !batchId.isEmpty() && !items.isEmpty();
    return isEnough ? new Remains(broker, session, batchId, items) : null;
  }

  private static Item itemOf(JsonReader in) {
    long stepId = 0;
    long delivery = 0;
    in.beginObject();
    while (in.nextMember()) {
      if (in.name().equals("step_id")) {
        stepId = in.integer();
      } else if (in.name().equals("delivery")) {
        delivery = in.integer();
      } else {
        in.skip(3);
      }
    }
    if (stepId < 1 || delivery < 1) {
      throw new InvalidMessage("bad_field", "a step without its ids");
    }
    return new Item(stepId, delivery);
  }
}
