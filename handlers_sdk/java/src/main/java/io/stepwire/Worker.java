package io.stepwire;

import io.stepwire.protocol.Limits;
import io.stepwire.runners.Registered;
import io.stepwire.session.Config;
import io.stepwire.session.Offer;
import io.stepwire.worker.SocketThread;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;

/**
 * Offers handlers to the brokers at its endpoints.
 *
 * <pre>{@code
 * Worker worker = Worker.fromEnv();
 * worker.handle("ship_order", Order.class, Ship::ship);
 * worker.run();
 * }</pre>
 *
 * <p>The worker gets its id and connects in {@link #run} or {@link #start}, not before.
 */
public final class Worker {
  private static final Duration DRAIN = Duration.ofMillis((long) SocketThread.DRAIN_MS);
  private static final int ACCEPT_DELAY_MS = 5;
  private static final Pattern NAME = Pattern.compile("[A-Za-z0-9_.:*-]{1,128}");

  private final WorkerBuilder settings;
  private final List<Registered> handlers = new ArrayList<>();
  private volatile SocketThread thread;

  Worker(WorkerBuilder settings) {
    this.settings = settings;
  }

  /**
   * A worker configured by STEPWIRE_STEPS, STEPWIRE_RESULTS, STEPWIRE_NAME, STEPWIRE_SLOTS,
   * STEPWIRE_LABELS, STEPWIRE_HANDLER_VERSION, STEPWIRE_CURVE_*, STEPWIRE_SECRETS_DIR and
   * STEPWIRE_SEAL_KEYS_FILE. Throws {@link ConfigurationError}.
   */
  public static Worker fromEnv() {
    return builder().fromEnv().build();
  }

  /**
   * A worker configured by the program; {@code builder().fromEnv()} begins with the environment.
   */
  public static WorkerBuilder builder() {
    return new WorkerBuilder();
  }

  /**
   * Registers a handler for a handler_class, or for a pattern ({@code Billing::**}). {@code
   * inputType} is the type of the input: a record, {@code Map.class}, {@code Object.class}, ….
   */
  public <I> Worker handle(String name, Class<I> inputType, Handler<I> handler) {
    return handle(name, inputType, HandlerOptions.standard(), handler);
  }

  /** The same with settings: the concurrency of the handler, its timeout, and others. */
  public synchronized <I> Worker handle(
      String name, Class<I> inputType, HandlerOptions options, Handler<I> handler) {
    if (thread != null) {
      throw new ConfigurationError(
          "handler '"
              + name
              + "' is registered too late: register handlers before the worker starts");
    }
    if (!NAME.matcher(name).matches()) {
      throw new ConfigurationError(
          "handler name "
              + Texts.quoted(name)
              + ": it needs 1 to 128 letters, digits, _ . : - and, for patterns, *");
    }
    if (handlers.stream().anyMatch(known -> known.name().equals(name))) {
      throw new ConfigurationError("handler '" + name + "' is registered twice in this worker");
    }
    if (handlers.size() >= Limits.HANDLERS_MAX) {
      throw new ConfigurationError(
          "more than " + Limits.HANDLERS_MAX + " handlers: register a pattern instead");
    }
    Offer offer = new Offer(name, options.concurrency, options.timeoutMs, options.isShadowSafe);
    @SuppressWarnings("unchecked") // the input is made as the type that this handler declares
    Handler<Object> function = (Handler<Object>) handler;
    handlers.add(
        new Registered(function, inputType, offer, options.isInterruptible, options.version));
    return this;
  }

  /** For the SDK: the registered handlers, in the order of their offers. */
  public List<Registered> handlers() {
    return List.copyOf(handlers);
  }

  /** The worker id of this process; null before the start. */
  public String id() {
    SocketThread running = thread;
    return running == null ? null : running.workerId();
  }

  // -- life ---------------------------------------------------------------------------------------

  /**
   * Runs until a signal or the broker ends the worker. TERM and INT drain; a second INT exits at
   * once with 130. After TSTP the worker accepts no new steps.
   */
  public void run() {
    AtomicInteger interrupts = new AtomicInteger();
    try (ProcessSignals signals =
        new ProcessSignals(name -> onSignal(name, interrupts), "TERM", "INT", "TSTP")) {
      assert signals != null;
      start();
      await(Duration.ofDays(36_500));
    } catch (InterruptedException interrupted) {
      drain();
      Thread.currentThread().interrupt();
    }
  }

  private void onSignal(String name, AtomicInteger interrupts) {
    if (name.equals("TSTP")) {
      quiet();
      return;
    }
    if (name.equals("INT") && interrupts.incrementAndGet() > 1) {
      Runtime.getRuntime().halt(130);
    }
    drain();
  }

  /** Connects, and runs in the background. */
  public synchronized void start() {
    if (handlers.isEmpty()) {
      throw new ConfigurationError(
          "the worker has no handlers: register some with worker.handle(...)");
    }
    if (thread != null && !thread.hasEnded()) {
      throw new ConfigurationError("the worker has started already");
    }
    Logs.setUp();
    Identity.ThisProcess process = Identity.thisProcess();
    Config config = new Config();
    config.worker = Identity.newWorkerId(settings.name);
    config.offers = handlers.stream().map(Registered::offer).toList();
    config.slots = settings.slots;
    config.prefetch = settings.prefetch;
    config.labels = settings.labels;
    config.links = settings.links;
    config.curve = settings.keys != null;
    config.heartbeatMs = settings.heartbeatMs;
    config.acceptDelayMs = ACCEPT_DELAY_MS;
    config.sdk = "stepwire-java/" + version();
    config.handlerVersion = settings.handlerVersion;
    config.host = process.host();
    config.pid = process.pid();
    config.pidStarted = process.pidStarted();
    config.proof = process.isProvable(); // handlers are threads: none outlives the process
    thread = new SocketThread(config, handlers(), settings.keys, settings.edge);
    thread.start();
  }

  /** Accepts no new steps, finishes the steps that are held, and stays connected. */
  public void quiet() {
    if (thread != null) {
      thread.quiet();
    }
  }

  /** Begins to stop: returns steps that have not started, lets runs finish for 25 s, then ends. */
  public void drain() {
    drain(DRAIN);
  }

  /** The same with another time for runs to finish. */
  public void drain(Duration time) {
    if (thread != null) {
      thread.drain(time.toMillis());
    }
  }

  /** Drains, and waits for the end. */
  public void stop() throws InterruptedException {
    drain();
    await(Duration.ofDays(1));
  }

  /**
   * Waits for the end of the worker. True if it has ended. Throws IllegalStateException if a fault
   * of the SDK ended it.
   */
  public boolean await(Duration timeout) throws InterruptedException {
    return thread == null || thread.await(timeout.toMillis());
  }

  private static String version() {
    String version = Worker.class.getPackage().getImplementationVersion();
    return version == null ? "0" : version;
  }
}
