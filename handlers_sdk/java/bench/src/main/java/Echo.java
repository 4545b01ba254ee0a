import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ.Socket;

/** A level-0 loop on the plain binding: what the speed of the SDK is compared with. */
public final class Echo {
  private static final byte[] STEPS = "steps ".getBytes(StandardCharsets.US_ASCII);
  private static final byte[] RESULTS = "results ".getBytes(StandardCharsets.US_ASCII);

  private Echo() {}

  public static void main(String[] arguments) throws IOException {
    ObjectMapper json = new ObjectMapper();
    try (ZContext context = new ZContext()) {
      Socket steps = context.createSocket(SocketType.SUB);
      Socket results = context.createSocket(SocketType.PUB);
      steps.connect(System.getenv("STEPWIRE_STEPS"));
      results.connect(System.getenv("STEPWIRE_RESULTS"));
      steps.subscribe(STEPS);
      while (true) {
        byte[] frame = steps.recv();
        if (!isOfSteps(frame)) {
          continue;
        }
        JsonNode batch = json.readTree(frame, STEPS.length, frame.length - STEPS.length);
        ObjectNode answer = json.createObjectNode();
        answer.set("batch_id", batch.get("batch_id"));
        answer.put("protocol_version", "1.0");
        ArrayNode done = answer.putArray("results");
        for (JsonNode step : batch.get("steps")) {
          ObjectNode result = done.addObject();
          result.set("step_id", step.get("step_id"));
          result.put("status", "completed");
          result.set("output", step.get("task_context"));
        }
        ByteArrayOutputStream out = new ByteArrayOutputStream(frame.length);
        out.write(RESULTS);
        json.writeValue(out, answer);
        results.send(out.toByteArray());
      }
    }
  }

  private static boolean isOfSteps(byte[] frame) {
    for (int i = 0; i < STEPS.length; i++) {
      if (i >= frame.length || frame[i] != STEPS[i]) {
        return false;
      }
    }
    return true;
  }
}
