package io.stepwire.protocol;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.stepwire.protocol.FromBroker.Ack;
import io.stepwire.protocol.FromBroker.Cancel;
import io.stepwire.protocol.FromBroker.HeartbeatAck;
import io.stepwire.protocol.FromBroker.Here;
import io.stepwire.protocol.FromBroker.InSession;
import io.stepwire.protocol.FromBroker.Refused;
import io.stepwire.protocol.FromBroker.Reset;
import io.stepwire.protocol.FromBroker.Steps;
import io.stepwire.protocol.FromBroker.Welcome;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;

/** The codec against {@code protocol/vectors}. */
class VectorsTest {
  private static final Path VECTORS = Path.of("../../protocol/vectors");

  @TestFactory
  Stream<DynamicTest> aMessageOfABrokerIsReadAsItsValue() {
    return list("accepted.json", "messages")
        .filter(vector -> "broker".equals(vector.get("sender")) && vector.get("level").equals(1L))
        .map(vector -> named(vector, () -> check(vector)));
  }

  @TestFactory
  Stream<DynamicTest> aMessageOfALaterVersionIsIgnored() {
    return list("accepted.json", "ignored")
        .filter(vector -> "broker".equals(vector.get("sender")))
        .map(vector -> named(vector, () -> assertEquals("unknown_type", codeOf(vector))));
  }

  @TestFactory
  Stream<DynamicTest> anInvalidMessageIsRefused() {
    return list("refused.json", "messages")
        .filter(vector -> "worker".equals(vector.get("to")))
        .map(vector -> named(vector, () -> assertEquals(vector.get("code"), codeOf(vector))));
  }

  @TestFactory
  Stream<DynamicTest> aPatternMatches() {
    return list("patterns.json", "patterns")
        .map(
            vector -> {
              String pattern = (String) vector.get("pattern");
              String path = (String) vector.get("path");
              return DynamicTest.dynamicTest(
                  "`" + pattern + "` and `" + path + "`",
                  () -> assertEquals(vector.get("matches"), Patterns.matches(pattern, path)));
            });
  }

  private static void check(Map<?, ?> vector) {
    FromBroker message = Codec.decodeBroker(bodyOf(vector), 0);
    Map<?, ?> value = (Map<?, ?>) vector.get("value");
    Map<String, Object> seen = seen(message);
    seen.forEach((member, is) -> assertEquals(Json.text(value.get(member)), Json.text(is), member));
  }

  /** The members of a message as the vectors write them. */
  private static Map<String, Object> seen(FromBroker message) {
    Map<String, Object> seen = new LinkedHashMap<>();
    seen.put("broker", message.broker());
    seen.put("epoch", message.epoch());
    if (message instanceof InSession inSession) {
      seen.put("session", inSession.session());
    }
    if (message instanceof Here here) {
      seen.put("deployment", here.deployment());
    } else if (message instanceof Welcome welcome) {
      seen.put("n", welcome.n());
      seen.put("lease_ms", welcome.leaseMs());
      seen.put("heartbeat_ms", welcome.heartbeatMs());
      seen.put("max_message_bytes", welcome.maxMessageBytes());
      seen.put("brokers", endpoints(welcome.brokers()));
    } else if (message instanceof HeartbeatAck ack) {
      seen.put("n", ack.n());
      seen.put("quiet", ack.quiet());
      seen.put("quit", ack.quit());
      seen.put("brokers", endpoints(ack.brokers()));
    } else if (message instanceof Steps steps) {
      seen.put("batch_id", steps.batchId());
      seen.put("steps", steps.steps().stream().map(VectorsTest::step).toList());
    } else if (message instanceof Cancel cancel) {
      seen.put("reason", cancel.reason());
      seen.put("items", items(cancel.items()));
    } else if (message instanceof Ack ack) {
      seen.put("rids", ack.rids());
    } else if (message instanceof Reset reset) {
      seen.put("next", reset.next());
      seen.put("code", reset.code());
    } else if (message instanceof Refused refused) {
      seen.put("message", refused.message());
      seen.put("refused", refused.refused());
      seen.put("rid", refused.rid() == 0 ? null : refused.rid());
    }
    return seen;
  }

  private static Object step(StepRequest step) {
    Map<String, Object> seen = new LinkedHashMap<>();
    seen.put("step_id", step.item().stepId());
    seen.put("task_id", step.taskId());
    seen.put("step_name", step.stepName());
    seen.put("handler_class", step.handlerClass());
    seen.put("handler_config", step.handlerConfig());
    seen.put("task_context", step.taskContext());
    seen.put("previous_results", step.previousResults());
    if (step.input() != null) {
      seen.put("input", step.input());
    }
    seen.put("delivery", step.item().delivery());
    seen.put("delivery_mode", step.isAtMostOnce() ? "at_most_once" : "at_least_once");
    Map<String, Object> metadata = new LinkedHashMap<>();
    metadata.put("attempt", step.metadata().attempt());
    metadata.put("retry_limit", step.metadata().retryLimit());
    metadata.put("timeout_ms", step.metadata().timeoutMs());
    metadata.put("idempotency_key", step.metadata().idempotencyKey());
    metadata.put("traceparent", step.metadata().traceparent());
    metadata.put("tracestate", step.metadata().tracestate());
    long deadlineMs = step.metadata().deadlineMs();
    metadata.put("deadline_ms", deadlineMs < 0 ? null : deadlineMs);
    metadata.put("shadow", step.metadata().isShadow());
    seen.put("metadata", metadata);
    return seen;
  }

  private static Object endpoints(List<FromBroker.Endpoints> brokers) {
    if (brokers == null) {
      return null;
    }
    List<Object> seen = new ArrayList<>();
    for (FromBroker.Endpoints each : brokers) {
      Map<String, Object> entry = new LinkedHashMap<>();
      entry.put("broker", each.broker());
      entry.put("steps", each.steps());
      entry.put("results", each.results());
      entry.put("server_key", each.serverKey());
      seen.add(entry);
    }
    return seen;
  }

  private static Object items(List<Item> items) {
    return items.stream().map(item -> List.of(item.stepId(), item.delivery())).toList();
  }

  private static String codeOf(Map<?, ?> vector) {
    byte[] body = bodyOf(vector);
    return assertThrows(InvalidMessage.class, () -> Codec.decodeBroker(body, 0)).code();
  }

  private static byte[] bodyOf(Map<?, ?> vector) {
    if (vector.get("parts") instanceof List<?> parts) {
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      for (Object part : parts) {
        Map<?, ?> each = (Map<?, ?>) part;
        Object times = each.get("times");
        for (long i = 0; i < (times == null ? 1 : (long) times); i++) {
          bytes.writeBytes(bodyOf(each));
        }
      }
      return bytes.toByteArray();
    }
    return vector.get("text") instanceof String text
        ? text.getBytes(StandardCharsets.UTF_8)
        : Base64.getDecoder().decode((String) vector.get("base64"));
  }

  private static DynamicTest named(Map<?, ?> vector, Runnable test) {
    return DynamicTest.dynamicTest((String) vector.get("name"), test::run);
  }

  private static Stream<Map<?, ?>> list(String file, String member) {
    try {
      byte[] bytes = Files.readAllBytes(VECTORS.resolve(file));
      Object content = JsonTree.read(new JsonReader(bytes, 0, bytes.length), 2 * Limits.DEPTH_MAX);
      List<?> list = (List<?>) ((Map<?, ?>) content).get(member);
      return list.stream().map(each -> (Map<?, ?>) each);
    } catch (IOException fault) {
      throw new AssertionError(fault);
    }
  }
}
