package io.stepwire.session;

import io.stepwire.protocol.Limits;
import io.stepwire.protocol.Topics;

/**
 * The worker's knowledge of one broker: the session, the lease, and the broker's share of the load.
 */
final class BrokerPeer {
  final String id;
  final byte[] topic;
  final Lease lease = new Lease();
  final Promises promises = new Promises();
  long next; // the k of the current or next session; increases when a session is dropped
  long epoch = -1;
  String session; // null without a session
  String deployment;
  long nAfter = -1; // only a welcome that echoes a later n counts
  long leaseMs = Limits.LEASE_MS;
  long heartbeatMs = Limits.HEARTBEAT_MS;
  long bytesMax = Limits.MESSAGE_BYTES_MAX;
  long floor = -1; // unknown batches of this session up to this number are stale
  int load; // deliveries of this broker that need a slot or have one
  double answeredMs; // the time of the broker's last answer to a hello or heartbeat
  double stepsMs = -Session.NEVER; // the time of the broker's last steps
  double openedMs; // the time at which the latest session opened
  double dropWaitMs; // the pause before the hello after the next drop
  boolean isHeldBack; // its latest credit is smaller than its share, because of promises to others
  boolean isQuiet; // `quiet` of the last heartbeat_ack: the broker sends no new steps

  BrokerPeer(String id, double nowMs, long next) {
    this.id = id;
    this.topic = Topics.resultsTo(id);
    this.next = next;
    this.answeredMs = nowMs;
    this.openedMs = nowMs;
  }
}
