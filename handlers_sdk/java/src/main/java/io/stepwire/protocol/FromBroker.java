package io.stepwire.protocol;

import java.util.List;

/** The messages of a broker (SPEC.md, section 6). Members that may be absent are null. */
public sealed interface FromBroker {
  /** The sender. */
  String broker();

  /** The process of the sender. */
  long epoch();

  /** The messages that are valid in one session only. */
  sealed interface InSession extends FromBroker {
    String session();
  }

  /** A broker started, or does not know the session that a message named. */
  record Here(String broker, long epoch, String deployment) implements FromBroker {}

  /** The session is open. {@code n} is the number of the hello. */
  record Welcome(
      String broker,
      long epoch,
      String session,
      String deployment,
      long n,
      long leaseMs,
      long heartbeatMs,
      long maxMessageBytes,
      List<Endpoints> brokers)
      implements FromBroker {}

  /** The ack of a heartbeat. {@code brokers} is null if the list is unchanged. */
  record HeartbeatAck(
      String broker,
      long epoch,
      String session,
      long n,
      boolean quiet,
      boolean quit,
      List<Endpoints> brokers)
      implements InSession {}

  /** A batch of steps to run. */
  record Steps(
      String broker,
      long epoch,
      String session,
      String batchId,
      String protocolVersion,
      List<StepRequest> steps)
      implements InSession {}

  /** The grant of these at_most_once steps is committed: the worker runs them. */
  record Go(String broker, long epoch, String session, List<Item> items) implements InSession {}

  /** The worker must stop these steps, or never start them. */
  record Cancel(String broker, long epoch, String session, List<Item> items, String reason)
      implements InSession {}

  /** The broker has committed these results messages, or does not need them. */
  record Ack(String broker, long epoch, List<Long> rids) implements FromBroker {}

  /** The broker asks whether the worker holds these items. */
  record Adopt(String broker, long epoch, String session, List<Item> items) implements InSession {}

  /** The broker rejects the session with the number {@code next}. */
  record Reset(String broker, long epoch, long next, String code) implements FromBroker {}

  /** The broker refused a message of this worker. {@code rid} is 0 if it names none. */
  record Refused(String broker, long epoch, String code, String message, String refused, long rid)
      implements FromBroker {}

  /** The endpoints of a broker. {@code serverKey} is null without CURVE. */
  record Endpoints(String broker, String steps, String results, String serverKey) {}
}
