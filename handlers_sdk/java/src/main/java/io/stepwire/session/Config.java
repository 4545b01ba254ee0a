package io.stepwire.session;

import io.stepwire.protocol.Limits;
import java.util.List;
import java.util.Map;

/** The worker's identity and capacity: the content of its {@code hello}. */
public final class Config {
  public String worker = "";
  public List<Offer> offers = List.of();
  public int slots = 1;

  /** The least room for steps that wait; -1: only what the observed pace says. */
  public int prefetch = -1;

  public Map<String, String> labels = Map.of();
  public List<Link> links = List.of();

  /** True if the sockets have CURVE keys. */
  public boolean curve;

  public int heartbeatMs = Limits.HEARTBEAT_MS;

  /** An accept waits this long for results that make it superfluous. */
  public int acceptDelayMs;

  public int maxMessageBytes = Limits.MESSAGE_BYTES_MAX;
  public String lang = "java";
  public String sdk = "";

  /** The release of the handlers. */
  public String handlerVersion = "";

  public String host = "";
  public long pid;
  public long pidStarted;
  public boolean proof;

  /**
   * The number of steps that may wait for a slot before any has ended: the member {@code prefetch}
   * of hello.
   */
  int queueMax() {
    return prefetch < 0 ? Math.max(slots, Limits.PREFETCH_MIN) : prefetch;
  }
}
