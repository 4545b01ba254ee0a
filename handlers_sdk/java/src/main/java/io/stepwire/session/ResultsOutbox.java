package io.stepwire.session;

import io.stepwire.protocol.Limits;
import io.stepwire.protocol.Topics;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The results messages that are not acknowledged yet, by rid. They are kept and resent. */
final class ResultsOutbox {
  long bytes;
  double resendAtMs = Session.NEVER;
  private final Map<Long, ResultsMessage> messages = new LinkedHashMap<>();
  private final Outgoing out;

  ResultsOutbox(Outgoing out) {
    this.out = out;
  }

  /** Sends the message, and keeps it until it is acknowledged. */
  void send(ResultsMessage message, byte[] frame) {
    messages.put(message.rid(), message);
    bytes += message.bytes;
    resendAtMs = Math.min(resendAtMs, message.atMs);
    out.send(frame);
  }

  /** Null if the message is not here. */
  ResultsMessage remove(long rid) {
    ResultsMessage message = messages.remove(rid);
    if (message != null) {
      bytes -= message.bytes;
    }
    return message;
  }

  /** Removes the messages for a broker whose database was replaced. Returns their number. */
  int discard(BrokerPeer peer) {
    List<ResultsMessage> discarded =
        messages.values().stream().filter(message -> message.peer == peer).toList();
    discarded.forEach(message -> remove(message.rid()));
    return discarded.size();
  }

  /** Resends the messages that are due, and schedules the next attempt of each. */
  void resend(double nowMs) {
    double atMs = Session.NEVER;
    for (ResultsMessage message : messages.values()) {
      if (message.atMs <= nowMs) {
        renew(message);
        message.tries++;
        message.waitMs = Math.min(message.waitMs * 2, Limits.RESULTS_RETRANSMIT_MAX_MS);
        message.atMs = nowMs + message.waitMs;
        out.send(out.frame(message.peer.topic, message.content));
        if (message.tries >= Limits.RESULTS_BROADCAST_FROM_TRY) {
          // The owner may be gone, and the worker cannot know which broker owns its steps now.
          out.send(out.frame(Topics.RESULTS, message.content));
        }
      }
      atMs = Math.min(atMs, message.atMs);
    }
    resendAtMs = atMs;
  }

  /** Sends this message with the next actions. */
  void hasten(ResultsMessage message, double nowMs) {
    message.atMs = nowMs;
    resendAtMs = nowMs;
  }

  /**
   * Sends the messages for this broker with the next actions, because its session has just opened.
   */
  void hastenAll(BrokerPeer peer, double nowMs) {
    for (ResultsMessage message : messages.values()) {
      if (message.peer == peer) {
        hasten(message, nowMs);
      }
    }
  }

  /** Puts the current session into the message. */
  private void renew(ResultsMessage message) {
    BrokerPeer peer = message.peer;
    if (peer.session == null || peer.session.equals(message.content.session())) {
      return;
    }
    String deployment = peer.deployment == null ? "" : peer.deployment;
    message.content = message.content.in(peer.session, deployment);
    bytes -= message.bytes;
    message.bytes = out.frame(peer.topic, message.content).length - peer.topic.length;
    bytes += message.bytes;
  }
}
