package io.stepwire.session;

import io.stepwire.protocol.Item;
import io.stepwire.protocol.Result;
import io.stepwire.protocol.StepRequest;
import java.util.Map;

/**
 * The actions that a session returns. Its caller performs them: a worker with sockets, or a test.
 */
public sealed interface Action
    permits Action.Send,
        Run,
        Action.CancelRun,
        Action.Connect,
        Action.Disconnect,
        Action.Rebuild,
        Action.Quit,
        Action.ResultTooLarge,
        Action.Log {

  /** How important an event is for an operator. */
  enum Level {
    DEBUG,
    INFO,
    WARNING,
    ERROR
  }

  /** Send this frame: the topic, then the message. */
  record Send(byte[] frame) implements Action {}

  /**
   * Ask a run that has begun to stop. {@code lease_lost} only informs the handler: the run
   * continues.
   */
  record CancelRun(Item item, String reason) implements Action {}

  /** Connect to a broker that another broker has listed. {@code serverKey} may be null. */
  record Connect(Link link, String serverKey) implements Action {}

  /** Disconnect from a broker that is no longer listed. */
  record Disconnect(Link link) implements Action {}

  /** Disconnect this pair of endpoints and connect it again: it was silent for too long. */
  record Rebuild(Link link) implements Action {}

  /** End the worker, which has drained and holds nothing. */
  record Quit() implements Action {}

  /** Log that a run has failed, because no message can carry its output. */
  record ResultTooLarge(StepRequest step, Result result) implements Action {}

  /** Log this event with its facts. */
  record Log(Level level, String event, Map<String, Object> facts) implements Action {}
}
