package io.stepwire;

import io.stepwire.edge.Edge;
import io.stepwire.protocol.Limits;
import io.stepwire.session.Link;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * The settings of a worker. {@code slots} is the number of steps that run at a time. Further steps
 * wait in the worker: as many as it is observed to finish in 40 ms, at least {@code prefetch}. With
 * {@code prefetch(0)}, no step waits here.
 *
 * <p>For several brokers, {@code steps} and {@code results} have one endpoint for each broker.
 */
public final class WorkerBuilder {
  List<Link> links;
  String name;
  int slots = Environment.SLOTS_DEFAULT;
  int prefetch = -1;
  int heartbeatMs = Limits.HEARTBEAT_MS;
  Map<String, String> labels = new LinkedHashMap<>();
  String handlerVersion = "";
  CurveKeys keys;
  Edge edge;
  private List<String> steps = List.of(Environment.STEPS_DEFAULT);
  private List<String> results = List.of(Environment.RESULTS_DEFAULT);
  private SecretResolver resolver;
  private String sealKeys;

  WorkerBuilder() {}

  /**
   * Reads STEPWIRE_STEPS, _RESULTS, _NAME, _SLOTS, _LABELS, _HANDLER_VERSION, _CURVE_*,
   * _SECRETS_DIR and _SEAL_KEYS_FILE.
   */
  public WorkerBuilder fromEnv() {
    return fromEnv(System.getenv());
  }

  /** The same from another environment. */
  public WorkerBuilder fromEnv(Map<String, String> environ) {
    String stepsText = Environment.get(environ, "STEPWIRE_STEPS", Environment.STEPS_DEFAULT);
    String resultsText = Environment.get(environ, "STEPWIRE_RESULTS", Environment.RESULTS_DEFAULT);
    steps = Environment.list(stepsText);
    results = Environment.list(resultsText);
    name = Environment.get(environ, "STEPWIRE_NAME", null);
    String slotsText = Environment.get(environ, "STEPWIRE_SLOTS", "" + Environment.SLOTS_DEFAULT);
    slots = Environment.slots(slotsText);
    labels = Environment.labels(Environment.get(environ, "STEPWIRE_LABELS", ""));
    handlerVersion = Environment.get(environ, "STEPWIRE_HANDLER_VERSION", "");
    keys = CurveKeys.read(environ);
    String directory = Environment.get(environ, "STEPWIRE_SECRETS_DIR", null);
    resolver = directory == null ? null : Edge.directory(directory);
    sealKeys = Environment.get(environ, "STEPWIRE_SEAL_KEYS_FILE", null);
    return this;
  }

  /** The endpoints where brokers send steps: {@code tcp://host:port}. */
  public WorkerBuilder steps(String... endpoints) {
    steps = List.of(endpoints);
    return this;
  }

  /** The endpoints where brokers receive results, in the order of {@code steps}. */
  public WorkerBuilder results(String... endpoints) {
    results = List.of(endpoints);
    return this;
  }

  /** The name in logs and lists of workers; by default that of the program. */
  public WorkerBuilder name(String workerName) {
    name = workerName;
    return this;
  }

  /** The number of steps that run at a time; 10 by default. */
  public WorkerBuilder slots(int number) {
    slots = number;
    return this;
  }

  /** The least number of steps that may wait in the worker; 0: no step waits. */
  public WorkerBuilder prefetch(int number) {
    if (number < 0) {
      throw new ConfigurationError("prefetch is " + number + ": it needs to be 0 or more");
    }
    prefetch = number;
    return this;
  }

  /** A label that selectors of workflows match. */
  public WorkerBuilder label(String key, String value) {
    labels.put(key, value);
    return this;
  }

  /** The release of the program's handlers, at most 64 characters; operators see it. */
  public WorkerBuilder handlerVersion(String version) {
    handlerVersion = version;
    return this;
  }

  /** The keys of the worker and the brokers. */
  public WorkerBuilder curve(CurveKeys curveKeys) {
    keys = curveKeys;
    return this;
  }

  /**
   * The directory with the values of secrets, one file for each, for references like {@code
   * {"$secret": "stripe/live"}} in the configuration and the input of a step.
   */
  public WorkerBuilder secrets(String directory) {
    return secrets(Edge.directory(directory));
  }

  /** The same with a function from the name of a secret to its value. */
  public WorkerBuilder secrets(SecretResolver function) {
    resolver = function;
    return this;
  }

  /** The file with the keys of sealed payloads. */
  public WorkerBuilder sealKeysFile(String path) {
    sealKeys = path;
    return this;
  }

  /** The longest interval of heartbeats; brokers may ask for a shorter one. */
  public WorkerBuilder heartbeatMs(int interval) {
    int most = Limits.LEASE_MS / 2;
    if (interval < 50 || interval > most) {
      throw new ConfigurationError(
          "heartbeat_ms is " + interval + ": it needs to be 50 to " + most);
    }
    heartbeatMs = interval;
    return this;
  }

  /** Checks the settings. Throws {@link ConfigurationError}. */
  public Worker build() {
    links = Environment.links(steps, results);
    name = Environment.checkName(name == null ? defaultName() : name);
    slots = Environment.checkSlots(slots);
    handlerVersion = Environment.checkHandlerVersion(handlerVersion);
    edge = new Edge(resolver, sealKeys);
    return new Worker(this);
  }

  /** The program's name, so that logs and lists of workers show which program runs. */
  private static String defaultName() {
    String command = System.getProperty("sun.java.command", "worker");
    String program = command.split(" ", 2)[0].replaceFirst("\\.jar$", "");
    String stem =
        program.substring(Math.max(program.lastIndexOf('/'), program.lastIndexOf('.')) + 1);
    String safe = stem.replaceAll("[^A-Za-z0-9._-]", "-").replaceAll("^-+|-+$", "");
    String cut = safe.length() > 48 ? safe.substring(0, 48) : safe;
    return cut.isEmpty() ? "worker" : cut;
  }
}
