package io.stepwire.testing;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.stepwire.ConfigurationError;
import io.stepwire.Context;
import io.stepwire.Handler;
import io.stepwire.HandlerOptions;
import io.stepwire.OutcomeUnknown;
import io.stepwire.Permanent;
import io.stepwire.Retry;
import io.stepwire.StepError;
import io.stepwire.StepLogger;
import io.stepwire.Worker;
import io.stepwire.testing.Outcome.RecordedProgress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.Test;

/** Handlers through the decoding, the encoding and the mapping of errors of a worker. */
class TestingTest {
  record Order(long orderId) {}

  record Shipped(long shipped, String by) {}

  record Payment(String transaction) {}

  private static final class Declined extends StepError {
    private static final long serialVersionUID = 1L;

    Declined() {
      super("declined");
    }
  }

  private static Outcome failing(Handler<Object> handler) {
    return Testing.handler(Object.class, handler).run();
  }

  @Test
  void aHandlerReceivesARecordAndReturnsARecord() {
    Outcome outcome =
        Testing.handler(Order.class, (context, order) -> new Shipped(order.orderId(), "java"))
            .input(Map.of("order_id", 7))
            .run();
    assertTrue(outcome.isCompleted());
    assertEquals(new Shipped(7, "java"), outcome.output(Shipped.class));
  }

  @Test
  void aContextHasResultsConfigAndIds() {
    Outcome outcome =
        Testing.handler(
                Object.class,
                (Context context, Object input) ->
                    List.of(
                        context.result("pay", Payment.class).transaction(),
                        context.config(),
                        context.idempotencyKey(),
                        context.attempt(),
                        context.traceparent(),
                        context.tracestate()))
            .result("pay", new Payment("t1"))
            .config(Map.of("fast", true))
            .idempotencyKey("k/step")
            .attempt(2)
            .trace("00-a-b-01", "v=1")
            .run();
    assertEquals(
        List.of("t1", Map.of("fast", true), "k/step", 2L, "00-a-b-01", "v=1"), outcome.output());
  }

  @Test
  void linesOfAHandlerHaveTheIdsOfTheStep() {
    List<LogRecord> records = new ArrayList<>();
    java.util.logging.Handler collector =
        new java.util.logging.Handler() {
          @Override
          public void publish(LogRecord line) {
            records.add(line);
          }

          @Override
          public void flush() {}

          @Override
          public void close() {}
        };
    Logger logger = Logger.getLogger("stepwire.handler");
    logger.addHandler(collector);
    try {
      Testing.handler(
              Object.class,
              (Context context, Object input) -> {
                context.log().info("charging");
                return null;
              })
          .attempt(2)
          .run();
    } finally {
      logger.removeHandler(collector);
    }
    assertEquals(1, records.size());
    StepLogger.Line line = (StepLogger.Line) records.get(0);
    assertEquals(
        List.of("charging", 1L, 2L, "step", 2L),
        List.of(line.getMessage(), line.taskId(), line.stepId(), line.stepName(), line.attempt()));
  }

  @Test
  void anUnexpectedExceptionIsRetriedAndNamedWithItsTrace() {
    Outcome outcome =
        failing(
            (context, input) -> {
              throw new IllegalStateException("nope");
            });
    assertEquals("failed", outcome.status());
    assertEquals("IllegalStateException: nope", outcome.error().message());
    assertEquals("IllegalStateException", outcome.error().code());
    assertNull(outcome.error().retryable());
    String trace = String.join("\n", outcome.error().backtrace());
    assertTrue(trace.contains("TestingTest"), trace);
    assertFalse(trace.contains("io.stepwire.runners"), trace);
  }

  @Test
  void anErrorOfTheJvmDoesNotEndTheWorker() {
    Outcome outcome =
        failing(
            (context, input) -> {
              throw new NoClassDefFoundError("x/Y");
            });
    assertEquals("NoClassDefFoundError: x/Y", outcome.error().message());
  }

  @Test
  void stepErrorsSayWhatTheyMean() {
    Outcome permanent =
        failing(
            (context, input) -> {
              throw new Permanent("no such card", "card");
            });
    assertEquals(false, permanent.error().retryable());
    assertEquals("card", permanent.error().code());
    Outcome retry =
        failing(
            (context, input) -> {
              throw new Retry("later", Duration.ofMillis(1500));
            });
    assertEquals(1500L, retry.error().retryAfterMs());
    Outcome unknown =
        failing(
            (context, input) -> {
              throw new OutcomeUnknown("who knows");
            });
    assertEquals("outcome_unknown", unknown.error().code());
    assertNull(unknown.error().retryable());
    Outcome unavailable =
        failing(
            (context, input) -> {
              throw new StepError("database away", null, "unavailable");
            });
    assertEquals("unavailable", unavailable.error().category());
    Outcome declined =
        failing(
            (context, input) -> {
              throw new Declined();
            });
    assertEquals("TestingTest$Declined", declined.error().code());
  }

  @Test
  void anOutputThatIsNoJsonIsAnErrorWithAdvice() {
    Outcome notANumber = failing((context, input) -> Double.NaN);
    assertEquals("error", notANumber.status());
    assertEquals("bad_output", notANumber.error().code());
    assertEquals(
        "the output of 'tested' cannot be sent as JSON: it holds NaN or Infinity, which JSON"
            + " does not have: return null instead",
        notANumber.error().message());
    Outcome future = failing((context, input) -> CompletableFuture.completedFuture(1));
    assertTrue(future.error().message().contains("wait for it, with join()"));
    Outcome once = Testing.handler(Object.class, (context, input) -> 1L << 53).atMostOnce().run();
    assertEquals("outcome_unknown", once.error().code());
  }

  @Test
  void anInputThatDoesNotFitIsABadInput() {
    Outcome outcome =
        Testing.handler(Order.class, (context, order) -> order)
            .input(Map.of("order_id", "7"))
            .run();
    assertEquals("error", outcome.status());
    assertEquals("bad_input", outcome.error().code());
    assertEquals(false, outcome.error().retryable());
    assertTrue(outcome.error().message().contains("`order_id` must be a whole number, not text"));
  }

  @Test
  void aRunPastItsTimeoutIsAskedToStop() {
    Outcome outcome =
        Testing.handler(
                Object.class,
                (context, input) -> {
                  assertTrue(context.cancelled().await(Duration.ofSeconds(10)));
                  context.throwIfCancelled();
                  return null;
                })
            .timeout(Duration.ofMillis(50))
            .run();
    assertEquals("timeout", outcome.error().code());
  }

  @Test
  void onlyAnInterruptibleHandlerIsInterrupted() {
    HandlerOptions interruptible =
        HandlerOptions.standard().timeout(Duration.ofMillis(50)).interruptible();
    Handler<Object> sleeper =
        (context, input) -> {
          Thread.sleep(400);
          return "slept";
        };
    assertEquals(
        "timeout", Testing.handler(Object.class, interruptible, sleeper).run().error().code());
    HandlerOptions plain = HandlerOptions.standard().timeout(Duration.ofMillis(50));
    assertEquals("slept", Testing.handler(Object.class, plain, sleeper).run().output());
    assertFalse(Thread.currentThread().isInterrupted());
  }

  @Test
  void progressIsRecorded() {
    Outcome outcome =
        Testing.handler(
                Object.class,
                (context, input) -> {
                  context.progress(1, 2, "n".repeat(300));
                  return null;
                })
            .run();
    RecordedProgress progress = outcome.progress().get(0);
    assertEquals(1L, progress.done());
    assertEquals(200, progress.note().length());
    assertTrue(progress.note().endsWith("…"));
  }

  @Test
  void progressThatIsNoNumberIsRefused() {
    Outcome outcome =
        failing(
            (context, input) -> {
              context.progress(Double.NaN, null);
              return null;
            });
    assertEquals("ConfigurationError", outcome.error().code());
  }

  @Test
  void aHandlerIsFoundByItsPattern() {
    Worker worker =
        Worker.builder()
            .build()
            .handle("Billing::**", Object.class, (context, input) -> context.handlerClass());
    assertEquals("Billing::a::b", Testing.handlerOf(worker, "Billing::a::b").run().output());
    ConfigurationError error =
        assertThrows(ConfigurationError.class, () -> Testing.handlerOf(worker, "x"));
    assertEquals("the worker does not offer 'x'; it offers Billing::**", error.getMessage());
  }
}
