package io.stepwire.conform;

import io.stepwire.ConfigurationError;
import io.stepwire.Context;
import io.stepwire.HandlerOptions;
import io.stepwire.OutcomeUnknown;
import io.stepwire.Permanent;
import io.stepwire.Retry;
import io.stepwire.StepError;
import io.stepwire.Worker;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;

/**
 * The conformance worker of this SDK: the handlers that the conformance kit calls ({@code
 * protocol/conformance/CONTRACT.md}). {@code stepwire handler conform -- bin/conform} grades them.
 */
public final class ConformWorker {
  private static final int CRASH_CODE = 70;
  private static final int USAGE_CODE = 2;
  private static final long POLL_MS = 50;

  /** What several handlers take: how to fail, how long, how much. */
  record Task(
      Optional<String> kind,
      Optional<String> text,
      Optional<String> note,
      Optional<Long> ms,
      Optional<Boolean> ignore,
      Optional<Integer> bytes) {}

  /** The input of {@code conform.typed}. */
  record Order(long orderId, Optional<String> note) {}

  private ConformWorker() {}

  public static void main(String[] arguments) {
    try {
      worker().run();
    } catch (ConfigurationError error) {
      System.err.println("stepwire: " + error.getMessage());
      System.exit(USAGE_CODE);
    }
  }

  private static Worker worker() {
    HandlerOptions standard = HandlerOptions.standard();
    return Worker.fromEnv()
        .handle("conform.echo", Object.class, (context, input) -> input)
        .handle("conform.fail", Task.class, ConformWorker::fail)
        .handle("conform.crash", Object.class, ConformWorker::crash)
        .handle("conform.wait", Task.class, ConformWorker::wait)
        .handle("conform.compute", Task.class, ConformWorker::compute)
        .handle("conform.big", Task.class, ConformWorker::big)
        .handle("conform.bad_output", Task.class, ConformWorker::badOutput)
        .handle("conform.context", Object.class, ConformWorker::context)
        .handle("conform.trace", Object.class, ConformWorker::trace)
        .handle("conform.progress", Task.class, ConformWorker::progress)
        .handle("conform.typed", Order.class, (context, order) -> order)
        .handle("conform.limited", Task.class, standard.concurrency(2), ConformWorker::wait)
        .handle(
            "conform.short",
            Task.class,
            standard.timeout(Duration.ofMillis(300)),
            ConformWorker::wait)
        .handle("conform.book", Object.class, Book::run);
  }

  private static Object fail(Context context, Task task) {
    throw switch (task.kind().orElse("error")) {
      case "permanent" -> new Permanent(task.text().orElse("a permanent error"), "conform");
      case "retry" -> new Retry(task.text().orElse("a retryable error"), Duration.ofMillis(1500));
      case "unknown" -> new OutcomeUnknown(task.text().orElse("the outcome is unknown"));
      case "unavailable" -> new StepError(task.text().orElse("a resource is unavailable"), null, "unavailable");
      default -> new IllegalStateException(task.text().orElse("an ordinary error"));
    };
  }

  private static Object crash(Context context, Object input) {
    Runtime.getRuntime().halt(CRASH_CODE);
    return null;
  }

  /**
   * Runs until a request to stop, or for {@code ms}. With {@code ignore}, it ignores the request.
   */
  private static Object wait(Context context, Task task) throws InterruptedException {
    long startedNs = System.nanoTime();
    boolean ignores = task.ignore().orElse(false);
    long leftMs = task.ms().orElse(0L);
    while (leftMs > 0) {
      if (ignores) {
        Thread.sleep(Math.min(leftMs, POLL_MS));
      } else if (context.cancelled().await(Duration.ofMillis(leftMs))) {
        break;
      }
      leftMs = task.ms().orElse(0L) - (System.nanoTime() - startedNs) / 1_000_000;
    }
    Map<String, Object> output = new LinkedHashMap<>();
    output.put("stopped", ignores ? null : context.cancelReason());
    output.put("ms", (System.nanoTime() - startedNs) / 1_000_000);
    return output;
  }

  private static Object compute(Context context, Task task) {
    long ms = task.ms().orElse(0L);
    long untilNs = System.nanoTime() + ms * 1_000_000;
    while (System.nanoTime() < untilNs) {
      Math.sqrt(untilNs);
    }
    return Map.of("ms", ms);
  }

  private static Object big(Context context, Task task) {
    return Map.of("text", "x".repeat(task.bytes().orElse(0)));
  }

  private static Object badOutput(Context context, Task task) {
    return Map.of(
        "value",
        switch (task.kind().orElse("object")) {
          case "nan" -> Double.NaN;
          case "bigint" -> (1L << 53) + 1;
          case "nul" -> "a\0b";
          case "surrogate" -> "\ud800";
          default -> new Object();
        });
  }

  private static Object context(Context context, Object input) {
    Map<String, Object> seen = new LinkedHashMap<>();
    seen.put("step_id", context.stepId());
    seen.put("task_id", context.taskId());
    seen.put("step_name", context.stepName());
    seen.put("attempt", context.attempt());
    seen.put("delivery", context.delivery());
    seen.put("delivery_mode", context.deliveryMode());
    seen.put("idempotency_key", context.idempotencyKey());
    seen.put("traceparent", context.traceparent());
    seen.put("tracestate", context.tracestate());
    seen.put("config", context.config());
    seen.put("results", context.results());
    seen.put("handler_class", context.handlerClass());
    return seen;
  }

  private static Object trace(Context context, Object input) {
    Map<String, Object> passedOn = new LinkedHashMap<>();
    passedOn.put("traceparent", context.traceparent());
    return passedOn;
  }

  private static Object progress(Context context, Task task) throws InterruptedException {
    context.progress(1, 2, task.note().orElse("half"));
    context.cancelled().await(Duration.ofMillis(task.ms().orElse(0L)));
    return Map.of();
  }
}
