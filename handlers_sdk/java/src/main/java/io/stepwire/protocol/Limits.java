package io.stepwire.protocol;

/** Every limit and time of the protocol, by name (SPEC.md, section 19). */
public final class Limits {
  public static final String PROTOCOL_LEVEL_1 = "2.0";
  public static final String[] VERSIONS_SUPPORTED = {PROTOCOL_LEVEL_1};

  /** The largest integer that the JSON parsers of all languages read exactly. */
  public static final long INTEGER_MAX = (1L << 53) - 1;

  public static final int DEPTH_MAX = 32;
  public static final int CONTAINERS_MAX = 250_000;
  public static final int MESSAGE_BYTES_MAX = 4 * 1024 * 1024;
  public static final int FRAME_BYTES_MAX = 8 * 1024 * 1024;
  public static final int BATCH_ITEMS_MAX = 1000;
  public static final int HANDLERS_MAX = 1000;
  public static final int NAME_BYTES_MAX = 128;
  public static final int HANDLER_VERSION_MAX = 64;
  public static final int TRACESTATE_MAX = 512;

  public static final int HEARTBEAT_MS = 2_000;
  public static final int HEARTBEAT_MIN_MS = 100;
  public static final double HEARTBEAT_JITTER = 0.10;
  public static final int LEASE_MS = 10_000;

  /** The lease ends at the worker first, because a message is sent before it is received. */
  public static final double LEASE_WORKER_FACTOR = 0.97;

  public static final int HELLO_RETRY_MS = 250;
  public static final int HELLO_RETRY_MAX_MS = 1_000;
  public static final double HELLO_JITTER = 0.20;

  /** The pause before the hello after the second drop in a row; doubles with each further one. */
  public static final int DROP_WAIT_MS = 250;

  public static final int DROP_WAIT_MAX_MS = 5_000;
  public static final int RESULTS_RETRANSMIT_MS = 500;
  public static final int RESULTS_RETRANSMIT_MAX_MS = 5_000;

  /** From this try on, results are also sent to every other broker. */
  public static final int RESULTS_BROADCAST_FROM_TRY = 3;

  public static final int START_RETRANSMIT_MS = 300;
  public static final int START_RETRANSMIT_MAX_MS = 3_000;
  public static final int SOCKET_REBUILD_MS = 15_000;
  public static final int SERVER_KEY_RETRY_MS = 5_000;

  /** The time after which a broker that no list names any more is disconnected. */
  public static final int UNLISTED_MS = 600_000;

  public static final int TIMEOUT_DEFAULT_MS = 30_000;
  public static final int TOMBSTONE_MS = 600_000;
  public static final int PREFETCH_MIN = 10;

  /** A worker has room for the steps that it is observed to finish in this time. */
  public static final int PREFETCH_MS = 40;

  private Limits() {}
}
