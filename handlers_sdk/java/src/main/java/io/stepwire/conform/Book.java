package io.stepwire.conform;

import io.stepwire.Context;
import io.stepwire.Permanent;
import io.stepwire.StepError;
import io.stepwire.protocol.Json;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * {@code conform.book}: writes down what each run does, so that a fault campaign can count the runs
 * and the effects of every delivery.
 */
final class Book {
  private static final long PID = ProcessHandle.current().pid();

  private Book() {}

  /** What the workflow configures: how long a run works, and how often it fails. */
  record Settings(java.util.Optional<Long> workMs, java.util.Optional<Long> failures) {}

  static Object run(Context context, Object input) throws IOException, InterruptedException {
    String folder = System.getenv("CONFORM_BOOK");
    if (folder == null || folder.isEmpty()) {
      throw new Permanent("CONFORM_BOOK is not set");
    }
    String name = System.getenv().getOrDefault("STEPWIRE_NAME", "worker");
    Path file = Path.of(folder, "worker-" + name + "-" + PID + ".jsonl");
    Settings settings = context.config(Settings.class);
    Map<String, Object> seen = new LinkedHashMap<>();
    context
        .results()
        .forEach(
            (step, output) ->
                seen.put(
                    String.valueOf(step),
                    output instanceof Map<?, ?> map ? map.get("token") : null));
    String key = context.idempotencyKey();
    write(
        file, context, "started", Map.of("mode", context.deliveryMode(), "key", key, "seen", seen));
    if (context.cancelled().await(Duration.ofMillis(settings.workMs().orElse(0L)))) {
      write(file, context, "stopped", Map.of("reason", context.cancelReason()));
      throw new StepError("the run was asked to stop: " + context.cancelReason(), "stopped");
    }
    write(file, context, "effect", Map.of("key", key));
    if (context.attempt() < settings.failures().orElse(0L)) {
      write(file, context, "failed", Map.of());
      throw new StepError("configured to fail", "told_to");
    }
    write(file, context, "finished", Map.of());
    return Map.of("token", context.stepId() + "/" + context.delivery() + "/" + PID);
  }

  /** One line by one write, so that lines of several threads never mix. */
  private static void write(Path file, Context context, String event, Map<String, Object> more)
      throws IOException {
    Map<String, Object> line = new LinkedHashMap<>();
    line.put("event", event);
    line.put("at", String.valueOf(System.nanoTime()));
    line.put("wall", String.valueOf(System.currentTimeMillis() * 1_000_000));
    line.put("step_id", context.stepId());
    line.put("task_id", context.taskId());
    line.put("step", context.stepName());
    line.put("delivery", context.delivery());
    line.put("attempt", context.attempt());
    line.put("pid", PID);
    line.putAll(more);
    // Nanoseconds since 1970 are above 2^53: strict JSON refuses them, and readers want numbers.
    String text = Json.text(line).replaceAll("\"(at|wall)\":\"([0-9]+)\"", "\"$1\":$2") + "\n";
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    Files.write(file, bytes, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
  }
}
