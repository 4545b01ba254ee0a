package io.stepwire.testing;

import io.stepwire.ConfigurationError;
import io.stepwire.Context;
import io.stepwire.Handler;
import io.stepwire.HandlerOptions;
import io.stepwire.Logs;
import io.stepwire.SecretResolver;
import io.stepwire.Worker;
import io.stepwire.edge.Edge;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.Json;
import io.stepwire.protocol.Raw;
import io.stepwire.protocol.Result;
import io.stepwire.protocol.StepRequest;
import io.stepwire.runners.HandlerCall;
import io.stepwire.runners.Registered;
import io.stepwire.session.Lease;
import io.stepwire.session.Offer;
import io.stepwire.session.Offers;
import io.stepwire.session.Run;
import io.stepwire.session.Session;
import io.stepwire.testing.Outcome.RecordedProgress;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Timer;
import java.util.TimerTask;
import java.util.UUID;

/**
 * Runs a handler once, with the decoding, encoding and mapping of errors of a worker, and without a
 * broker:
 *
 * <pre>{@code
 * Outcome outcome = Testing.handler(Order.class, Ship::ship)
 *     .input(new Order(7))
 *     .result("pay", Map.of("transaction", "t1"))
 *     .run();
 * assertEquals("completed", outcome.status());
 * }</pre>
 */
public final class Testing {
  private static final Item ITEM = new Item(2, 1);

  private final Registered handler;
  private final String handlerClass;
  private final Map<String, Object> results = new LinkedHashMap<>();
  private Object input = Map.of();
  private Object config = Map.of();
  private long attempt;
  private boolean isAtMostOnce;
  private long timeoutMs = 30_000;
  private String idempotencyKey = UUID.randomUUID().toString().replace("-", "") + "/step";
  private String traceparent;
  private String tracestate;
  private SecretResolver resolver;

  private Testing(Registered handler, String handlerClass) {
    this.handler = handler;
    this.handlerClass = handlerClass;
  }

  /** Tests a handler function. */
  public static <I> Testing handler(Class<I> inputType, Handler<I> handler) {
    return handler(inputType, HandlerOptions.standard(), handler);
  }

  /** Tests a handler function with settings. */
  public static <I> Testing handler(
      Class<I> inputType, HandlerOptions options, Handler<I> handler) {
    Worker worker = Worker.builder().build().handle("tested", inputType, options, handler);
    return handlerOf(worker, "tested");
  }

  /** Tests the handler that a worker offers for this handler_class. */
  public static Testing handlerOf(Worker worker, String handlerClass) {
    List<Offer> offers = worker.handlers().stream().map(Registered::offer).toList();
    int number = Offers.find(offers, handlerClass);
    if (number < 0) {
      String offered = String.join(", ", offers.stream().map(Offer::pattern).toList());
      throw new ConfigurationError(
          "the worker does not offer '"
              + handlerClass
              + "'; it offers "
              + (offered.isEmpty() ? "nothing" : offered));
    }
    return new Testing(worker.handlers().get(number), handlerClass);
  }

  /** The input: anything that JSON can hold, for example the handler's own record. */
  public Testing input(Object value) {
    input = value;
    return this;
  }

  /** The output of a step that the tested step depends on. */
  public Testing result(String stepName, Object output) {
    results.put(stepName, output);
    return this;
  }

  /** The step's {@code handler_config}. */
  public Testing config(Object value) {
    config = value;
    return this;
  }

  /** The number of failed attempts before this one. */
  public Testing attempt(long number) {
    attempt = number;
    return this;
  }

  public Testing atMostOnce() {
    isAtMostOnce = true;
    return this;
  }

  /** The time after which the run is asked to stop; 30 s by default. */
  public Testing timeout(Duration time) {
    timeoutMs = time.toMillis();
    return this;
  }

  public Testing idempotencyKey(String key) {
    idempotencyKey = key;
    return this;
  }

  /** The W3C trace context of the step; {@code state} may be null. */
  public Testing trace(String parent, String state) {
    traceparent = parent;
    tracestate = state;
    return this;
  }

  /** The values of the secrets to which the input and the configuration refer, by their names. */
  public Testing secrets(Map<String, String> values) {
    resolver = values::get;
    return this;
  }

  /** Runs the handler in this thread. */
  public Outcome run() {
    Logs.setUp();
    StepRequest step =
        new StepRequest(
            ITEM,
            1,
            "step",
            handlerClass,
            Raw.of(Json.encode(config)),
            Raw.of(Json.encode(input)),
            Raw.of(Json.encode(results)),
            null,
            isAtMostOnce,
            true,
            new StepRequest.Metadata(
                attempt, 3, timeoutMs, idempotencyKey, traceparent, tracestate, -1, false));
    List<RecordedProgress> progress = Collections.synchronizedList(new ArrayList<>());
    Context context =
        new Context(
            step,
            report ->
                progress.add(new RecordedProgress(report.done(), report.total(), report.note())));
    double stepTimeoutMs = timeoutMs == 0 ? Session.NEVER : timeoutMs;
    double ownMs = handler.offer().timeoutMs();
    double shortestMs = ownMs > 0 ? Math.min(ownMs, stepTimeoutMs) : stepTimeoutMs;
    Run run = new Run(step, 0, new Lease(), shortestMs, Session.NEVER);
    HandlerCall call = new HandlerCall(run, handler, context, new Edge(resolver, null));
    Timer timer = new Timer("stepwire-test", true);
    try {
      if (shortestMs != Session.NEVER) {
        timer.schedule(stop(call), (long) shortestMs);
      }
      return outcome(call.performTest(), List.copyOf(progress));
    } finally {
      timer.cancel();
    }
  }

  private static TimerTask stop(HandlerCall call) {
    return new TimerTask() {
      @Override
      public void run() {
        call.stop("timeout");
      }
    };
  }

  private static Outcome outcome(Result result, List<RecordedProgress> progress) {
    boolean isCompleted = result.status() == Result.Status.COMPLETED;
    Object output = isCompleted ? Json.parse(result.output()) : null;
    return new Outcome(result.status().word(), output, result.error(), progress);
  }
}
