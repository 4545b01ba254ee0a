package io.stepwire.session;

import io.stepwire.protocol.Item;
import io.stepwire.protocol.StepRequest;

/**
 * Run this step as soon as a slot is free. If {@link #begin} returns false, report that the step is
 * given back.
 *
 * <p>The session and a runner share this object. The runner begins the run; until then, the session
 * may take it back. Each writes its own decision before it reads the other's, and all these fields
 * are volatile, so a run that was taken back never begins.
 */
public final class Run implements Action {
  private final StepRequest step;
  private final int offer;
  private final double timeoutMs;
  private final double deadlineMs;
  private volatile Lease lease;
  private volatile boolean isTakenBack;
  private volatile boolean hasEnded;
  private volatile double startedMs = Double.NaN;
  private volatile double timeoutAtMs = Session.NEVER;

  public Run(StepRequest step, int offer, Lease lease, double timeoutMs, double deadlineMs) {
    this.step = step;
    this.offer = offer;
    this.lease = lease;
    this.timeoutMs = timeoutMs;
    this.deadlineMs = deadlineMs;
  }

  public Item item() {
    return step.item();
  }

  public StepRequest step() {
    return step;
  }

  /** The number of the offer that handles the step. */
  public int offer() {
    return offer;
  }

  public double timeoutMs() {
    return timeoutMs;
  }

  /** The time at which the run must end, whenever it begins. */
  public double deadlineMs() {
    return deadlineMs;
  }

  public boolean hasStarted() {
    return !Double.isNaN(startedMs);
  }

  public double startedMs() {
    return startedMs;
  }

  /** The earlier of timeout and deadline, once the run has begun. */
  public double timeoutAtMs() {
    return timeoutAtMs;
  }

  void moveTo(Lease other) {
    lease = other;
  }

  /**
   * Called by the runner when it has a slot: may the handler be called? Not after the end of the
   * lease.
   */
  public boolean begin(double nowMs) {
    startedMs = nowMs;
    if (isTakenBack || isLeaseOver(nowMs)) {
      startedMs = Double.NaN;
      return false;
    }
    timeoutAtMs = Math.min(nowMs + timeoutMs, deadlineMs);
    return true;
  }

  /** True after the end of the lease: another worker may run the step. */
  public boolean isLeaseOver(double nowMs) {
    return nowMs >= lease.untilMs;
  }

  /**
   * Called by the runner before it releases the slot: from now on the run counts as ended in every
   * heartbeat, although its outcome has not reached the session yet.
   */
  public void end() {
    hasEnded = hasStarted();
  }

  boolean hasEnded() {
    return hasEnded;
  }

  /** Called by the session: true if the run has not begun, and therefore never will. */
  boolean takeBack() {
    isTakenBack = true;
    return Double.isNaN(startedMs);
  }
}
