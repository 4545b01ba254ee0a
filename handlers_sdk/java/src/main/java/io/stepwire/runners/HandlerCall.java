package io.stepwire.runners;

import io.stepwire.Context;
import io.stepwire.Identity;
import io.stepwire.edge.Edge;
import io.stepwire.protocol.InvalidMessage;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.Result;
import io.stepwire.protocol.StepRequest;
import io.stepwire.session.Run;
import java.util.concurrent.CancellationException;

/** One call of a handler, from the session's {@code Run} to the result for the broker. */
public final class HandlerCall {
  private final Run run;
  private final Registered handler;
  private final Context context;
  private final Edge edge; // null: the step certainly needs no opening
  private StepRequest step; // as the handler receives it
  private boolean isSealed;
  private Thread interruptible; // the thread that is in the handler, if it may be interrupted

  public HandlerCall(Run run, Registered handler, Context context, Edge edge) {
    this.run = run;
    this.handler = handler;
    this.context = context;
    this.edge = run.step().mayNeedOpening() ? edge : null;
    this.step = run.step();
  }

  public Item item() {
    return run.item();
  }

  public StepRequest step() {
    return run.step();
  }

  int offer() {
    return run.offer();
  }

  /** Asks the run to stop. A lost lease only informs the handler. */
  public void stop(String reason) {
    context.stop(reason);
    if (!reason.equals("lease_lost")) {
      synchronized (this) {
        if (interruptible != null) {
          interruptible.interrupt();
        }
      }
    }
  }

  /**
   * Runs the handler in this thread. Null: the step was not started, or had no effect, and is given
   * back.
   */
  public Result perform() {
    double startedMs = Identity.nowMs();
    if (!run.begin(startedMs)) {
      return null;
    }
    context.begin(startedMs, run.timeoutAtMs());
    if (context.cancelReason() != null) {
      return null;
    }
    return opened(startedMs, true);
  }

  /** Called when the run has ended, before its slot is released. */
  void end() {
    run.end();
  }

  /** The same without a lease, for tests of handlers. */
  public Result performTest() {
    double startedMs = Identity.nowMs();
    context.begin(startedMs, startedMs + run.timeoutMs());
    return opened(startedMs, false);
  }

  /**
   * Calls the handler between the opening of its step and the closing of its result. A lease that
   * ends meanwhile gives the step back.
   */
  private Result opened(double startedMs, boolean hasLease) {
    if (edge == null) {
      return call(startedMs);
    }
    Edge.Opened opened = edge.open(run.step());
    if (opened.refusal() != null) {
      return logged(opened.refusal());
    }
    step = opened.step();
    isSealed = opened.isSealed();
    context.open(step, isSealed);
    if (hasLease && isTooLate()) {
      return null;
    }
    Result result = call(startedMs);
    return result == null ? null : edge.close(opened, result);
  }

  /**
   * True if the lease ended while the step was opened, also if a new session has begun since: the
   * broker may have given the step to another worker.
   */
  private boolean isTooLate() {
    return run.isLeaseOver(Identity.nowMs()) || context.leaseLost().isSet();
  }

  private Result call(double startedMs) {
    Object input;
    try {
      input = handler.readInput(step);
    } catch (InvalidMessage refusal) {
      return logged(Outcomes.badInput(handler, step, refusal.getMessage()));
    }
    Object value;
    try {
      enter();
      value = handler.function().handle(context, input);
    } catch (Throwable error) { // also an Error: a handler's fault must not end the worker
      return failed(error, Identity.nowMs() - startedMs);
    } finally {
      leave();
    }
    double tookMs = Identity.nowMs() - startedMs;
    Result result;
    try {
      result = Outcomes.completed(handler, step, value, tookMs);
    } catch (RuntimeException | Error error) { // of an accessor or an iterator; out of memory
      return failed(error, tookMs);
    }
    return result.error() == null ? result : logged(result);
  }

  private Result failed(Throwable error, double tookMs) {
    String reason = context.cancelReason();
    boolean hasStopped =
        error instanceof InterruptedException || error instanceof CancellationException;
    if (reason != null && (hasStopped || reason.equals("timeout"))) {
      if (reason.equals("shutdown") && !step.isAtMostOnce()) {
        return null;
      }
      return Outcomes.stopped(handler, step, reason, tookMs);
    }
    RunLog.thrown(step, error, reason, isSealed);
    return Outcomes.failed(handler, step, error, tookMs);
  }

  private Result logged(Result result) {
    RunLog.notReported(step, result, isSealed);
    return result;
  }

  private synchronized void enter() {
    if (handler.isInterruptible()) {
      interruptible = Thread.currentThread();
      if (context.cancelled().isSet()) {
        interruptible.interrupt();
      }
    }
  }

  /** From now on no one interrupts the thread, which then runs the next handler. */
  private synchronized void leave() {
    interruptible = null;
    Thread.interrupted();
  }
}
