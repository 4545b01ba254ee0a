package io.stepwire.session;

import io.stepwire.protocol.Item;
import io.stepwire.protocol.StepRequest;

/** One delivery in this process. */
final class HeldDelivery {
  /**
   * A delivery passes through these states in this order. In any of them it can end, and then
   * becomes a tombstone.
   */
  enum State {
    /** It waits in the session. */
    QUEUED("queued"),
    /** at_most_once: it has a slot, and waits for the broker's go. */
    ASKING("asking"),
    /** Handed to the runner: its run begins when a slot is free. */
    RUNNING("running"),
    /** Its result is kept until a broker acknowledges it. */
    DONE("done");

    final String word;

    State(String word) {
      this.word = word;
    }
  }

  final Item item;
  final HeldBatch batch;
  final int offer;
  final double receivedMs;
  final boolean isAtMostOnce;
  StepRequest step; // null after the run has ended, when only the result is needed
  BrokerPeer peer; // the broker that owns the delivery; changed by an adoption
  Run run; // since its hand-over to the runner
  State state = State.QUEUED; // null: no longer held
  boolean isStopping; // was asked to stop
  boolean isInterrupted; // the same, or lost its broker: a failure of at_most_once proves nothing
  double askAtMs;
  double askWaitMs;
  ResultsMessage message;

  HeldDelivery(StepRequest step, BrokerPeer peer, HeldBatch batch, int offer, double nowMs) {
    this.item = step.item();
    this.step = step;
    this.peer = peer;
    this.batch = batch;
    this.offer = offer;
    this.receivedMs = nowMs;
    this.isAtMostOnce = step.isAtMostOnce();
  }

  double timeoutAtMs() {
    return run == null ? Session.NEVER : run.timeoutAtMs();
  }

  /**
   * The state for brokers, for which a step runs from its start. A granted step counts as running
   * at once, and a run whose outcome is on its way to the session as done: another run has its
   * slot.
   */
  State reportedState() {
    boolean waits = state == State.RUNNING && !isAtMostOnce && (run == null || !run.hasStarted());
    if (waits) {
      return State.QUEUED;
    }
    return state == State.RUNNING && run != null && run.hasEnded() ? State.DONE : state;
  }

  /**
   * Milliseconds since the start of the run, or since the receipt if the run has not started. A
   * granted run that begins now has no age: its wait for its go is not part of its timeout.
   */
  long ageMs(double nowMs) {
    boolean hasStarted = run != null && run.hasStarted();
    if (!hasStarted && reportedState() == State.RUNNING) {
      return 0;
    }
    return Math.max(0, (long) (nowMs - (hasStarted ? run.startedMs() : receivedMs)));
  }

  /** True if the run has not begun, and now never will. The caller then ends the delivery. */
  boolean withdraw() {
    if (state == State.RUNNING) {
      return run != null && run.takeBack();
    }
    return state == State.QUEUED || state == State.ASKING;
  }
}
