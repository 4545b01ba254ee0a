package io.stepwire.runners;

import io.stepwire.protocol.Item;
import io.stepwire.protocol.Result;
import io.stepwire.session.Offer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.function.BiConsumer;

/**
 * Runs handlers on at most {@code slots} daemon threads, which are started on demand. The socket
 * thread submits calls. When a call ends, its thread starts the next one, without the socket
 * thread.
 */
public final class Runner {
  private static final long STOP_MS = 500; // a run that does not stop in this time is abandoned

  private final RunSlots<HandlerCall> slots;
  private final int threadsMax;
  private final BiConsumer<Item, Result> report;
  private final Deque<HandlerCall> ready = new ArrayDeque<>(); // have a slot, and need a thread
  private final List<Thread> threads = new ArrayList<>();
  private List<HandlerCall> submitted = new ArrayList<>();
  private int idle;
  private boolean isWaking; // a thread was woken or started, and has not arrived yet
  private boolean isStopped;

  /** {@code report} accepts a result, or null for a step that is given back, on any thread. */
  public Runner(int slots, List<Offer> offers, BiConsumer<Item, Result> report) {
    this.slots = new RunSlots<>(slots, offers, HandlerCall::offer);
    this.threadsMax = slots;
    this.report = report;
  }

  /** Starts the call at the next {@link #flush}. */
  public void submit(HandlerCall call) {
    submitted.add(call);
  }

  /** Starts the calls that were submitted since the last flush, as far as slots are free. */
  public void flush() {
    if (submitted.isEmpty()) {
      return;
    }
    List<HandlerCall> calls = submitted;
    submitted = new ArrayList<>();
    List<HandlerCall> started = slots.add(calls);
    if (!started.isEmpty()) {
      synchronized (this) {
        ready.addAll(started);
        callThread();
      }
    }
  }

  /** Ends the threads. Waits a little for threads that are in a handler. */
  public void stop() {
    List<Thread> all;
    synchronized (this) {
      isStopped = true;
      notifyAll();
      all = List.copyOf(threads);
    }
    long untilMs = System.nanoTime() / 1_000_000 + STOP_MS;
    for (Thread thread : all) {
      long leftMs = untilMs - System.nanoTime() / 1_000_000;
      if (leftMs > 0) {
        try {
          thread.join(leftMs);
        } catch (InterruptedException interrupted) {
          return;
        }
      }
    }
  }

  /**
   * Wakes or starts one thread, if there is a call for it. That thread does the same when it has
   * arrived: so one thread at a time is woken, and it finds no call if the others were short.
   */
  private void callThread() {
    if (ready.isEmpty() || isWaking) {
      return;
    }
    if (idle > 0) {
      isWaking = true;
      notify();
    } else if (threads.size() < threadsMax) {
      isWaking = true;
      Thread thread = new Thread(this::serve, "stepwire-handler-" + (threads.size() + 1));
      thread.setDaemon(true);
      threads.add(thread);
      thread.start();
    }
  }

  private void serve() {
    HandlerCall call = take(true);
    for (; call != null; call = take(false)) {
      while (call != null) {
        Result result = call.perform();
        HandlerCall ended = call;
        ended.end();
        call = slots.release(ended);
        report.accept(ended.item(), result);
      }
    }
  }

  /**
   * The next call that has a slot. Null: this thread must end. {@code hasArrived}: it was just
   * started.
   */
  private synchronized HandlerCall take(boolean hasArrived) {
    if (hasArrived) {
      isWaking = false;
    }
    while (true) {
      if (isStopped) {
        return null;
      }
      HandlerCall call = ready.pollFirst();
      if (call != null) {
        callThread();
        return call;
      }
      idle++;
      try {
        wait();
      } catch (InterruptedException stray) {
        // A handler has interrupted this thread after its own run.
      }
      idle--;
      isWaking = false;
    }
  }
}
