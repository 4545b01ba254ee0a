package io.stepwire.worker;

import io.stepwire.Context;
import io.stepwire.CurveKeys;
import io.stepwire.Identity;
import io.stepwire.edge.Edge;
import io.stepwire.protocol.Item;
import io.stepwire.runners.HandlerCall;
import io.stepwire.runners.Registered;
import io.stepwire.runners.RunLog;
import io.stepwire.runners.Runner;
import io.stepwire.session.Action.Level;
import io.stepwire.session.Action;
import io.stepwire.session.Config;
import io.stepwire.session.Offer;
import io.stepwire.session.Run;
import io.stepwire.session.Session;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.Selector;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * The thread that owns both sockets, from the worker's first hello until it has quit. No handler
 * runs on this thread, so heartbeats continue while handlers compute, and no one interrupts it:
 * JeroMQ would lose its state.
 *
 * <p>The thread passes frames and outcomes of calls to the session, and the session's actions to
 * sockets and runner.
 */
public final class SocketThread {
  /** The time for runs to finish when the worker drains. */
  public static final double DRAIN_MS = 25_000;

  private static final double EXPEL_MS = 2_000; // time for runs to end after a request to stop
  private static final int RECEIVE_MAX = 500; // frames received before actions are performed
  private static final int RECEIVE_BYTES_MAX = 64 * 1024; // the same in bytes
  private static final double POLL_MAX_MS = 60_000;

  private final Config config;
  private final List<Registered> handlers;
  private final CurveKeys keys;
  private final Edge edge;
  private final Session session;
  private final WorkerEvents events;
  private final BrokerSearch search;
  private final Selector selector;
  private final Mailbox mailbox;
  private final Map<Item, HandlerCall> calls = new HashMap<>();
  private final CountDownLatch hasEnded = new CountDownLatch(1);
  private final Thread thread = new Thread(this::main, "stepwire-sockets");
  private Runner runner;
  private WorkerSockets sockets;
  private double drainMs = DRAIN_MS;
  private double expelAtMs = Session.NEVER;
  private double leaveAtMs = Session.NEVER;
  private boolean hasQuit;
  private boolean hasMoreFrames;
  private volatile Throwable fault;

  /** {@code keys} is null without CURVE. */
  public SocketThread(Config config, List<Registered> handlers, CurveKeys keys, Edge edge) {
    this.config = config;
    this.handlers = handlers;
    this.keys = keys;
    this.edge = edge;
    session = new Session(config, new Random()::nextDouble);
    events = new WorkerEvents(session::linkOf, keys);
    search = new BrokerSearch(events, keys);
    try {
      selector = Selector.open();
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
    mailbox = new Mailbox(selector::wakeup);
    thread.setDaemon(true);
  }

  // -- called by other threads --------------------------------------------------------------------

  public String workerId() {
    return config.worker;
  }

  public void start() {
    thread.start();
  }

  public boolean hasEnded() {
    return hasEnded.getCount() == 0;
  }

  /**
   * Waits for the end of the thread. True if it has ended. Throws IllegalStateException if a fault
   * of the SDK ended it.
   */
  public boolean await(long timeoutMs) throws InterruptedException {
    if (!hasEnded.await(timeoutMs, TimeUnit.MILLISECONDS)) {
      return false;
    }
    if (fault != null) {
      throw new IllegalStateException("the worker's socket thread has failed", fault);
    }
    return true;
  }

  public void quiet() {
    mailbox.putRequest(() -> session.quiet(Identity.nowMs()));
  }

  /** Lets runs finish for {@code limitMs}, then asks them to stop. */
  public void drain(double limitMs) {
    mailbox.putRequest(
        () -> {
          double nowMs = Identity.nowMs();
          drainMs = Math.min(drainMs, limitMs);
          session.drain(nowMs);
          expelAtMs = Math.min(expelAtMs, nowMs + limitMs);
        });
  }

  // -- the thread ---------------------------------------------------------------------------------

  private void main() {
    try (selector) {
      List<Offer> offers = config.offers;
      runner = new Runner(config.slots, offers, mailbox::putOutcome);
      sockets = new WorkerSockets(selector, config.worker, config.links, keys, events);
      try {
        work();
      } finally {
        sockets.close();
        runner.stop();
      }
      int held = session.heldCount();
      events.log(Level.INFO, "worker_ended", Map.of("unacknowledged", held));
    } catch (Throwable failure) {
      events.logFailure(failure);
      fault = failure;
    } finally {
      hasEnded.countDown();
    }
  }

  private void work() throws IOException {
    session.start(Identity.nowMs());
    events.log(
        Level.INFO,
        "worker_started",
        Map.of(
            "name",
            config.worker.substring(0, config.worker.indexOf(':')),
            "handlers",
            config.offers.stream().map(Offer::pattern).toList(),
            "slots",
            config.slots,
            "pid",
            config.pid));
    lookForBrokers();
    while (!hasQuit) {
      for (Action action : session.actions(Identity.nowMs())) {
        perform(action);
      }
      runner.flush();
      sleep();
      double nowMs = Identity.nowMs();
      receive(nowMs);
      readMailbox();
      checkDrain(nowMs);
      if (nowMs >= search.reportAtMs) {
        lookForBrokers();
      }
    }
  }

  /** Waits for a frame, an addition to the mailbox, or the time at which the session has to act. */
  private void sleep() throws IOException {
    if (hasMoreFrames || hasQuit) {
      return;
    }
    double atMs = Math.min(session.wakeAt(), Math.min(expelAtMs, leaveAtMs));
    double waitMs = Math.min(atMs, search.reportAtMs) - Identity.nowMs();
    if (waitMs <= 0) {
      return;
    }
    if (session.awaitsResults()) {
      // Results wait for others that end within this millisecond. Only the last of them needs to
      // wake this thread meanwhile.
      if (mailbox.maySleepUntilEndOf(calls.size())) {
        sockets.poll(1);
      }
    } else if (mailbox.maySleep()) {
      sockets.poll((long) Math.min(waitMs, POLL_MAX_MS) + 1);
    }
    mailbox.awake();
  }

  private void receive(double nowMs) {
    int leftBytes = RECEIVE_BYTES_MAX;
    hasMoreFrames = true;
    for (int i = 0; i < RECEIVE_MAX && leftBytes > 0; i++) {
      byte[] frame = sockets.receive();
      if (frame == null) {
        hasMoreFrames = false;
        return;
      }
      leftBytes -= frame.length;
      session.receive(frame, nowMs);
    }
  }

  private void readMailbox() {
    double nowMs = Identity.nowMs();
    Runnable request;
    while ((request = mailbox.takeRequest()) != null) {
      request.run();
    }
    Mailbox.Outcome outcome;
    while ((outcome = mailbox.takeOutcome()) != null) {
      calls.remove(outcome.item());
      if (outcome.result() == null) {
        session.giveBack(outcome.item(), nowMs);
      } else {
        session.finished(outcome.item(), outcome.result(), nowMs);
      }
    }
  }

  /** After the time to drain, asks runs to stop. After EXPEL_MS, quits without waiting for them. */
  private void checkDrain(double nowMs) {
    if (nowMs >= expelAtMs) {
      expelAtMs = Session.NEVER;
      leaveAtMs = nowMs + (session.expel() > 0 ? EXPEL_MS : 0);
    }
    if (nowMs >= leaveAtMs) {
      hasQuit = true;
    }
  }

  // -- actions of the session ---------------------------------------------------------------------

  private void perform(Action action) {
    if (action instanceof Run run) {
      run(run);
    } else if (action instanceof Action.Send send) {
      sockets.send(send.frame());
    } else if (action instanceof Action.CancelRun cancel) {
      cancel(cancel);
    } else if (action instanceof Action.Log log) {
      log(log);
    } else if (action instanceof Action.Connect connect) {
      sockets.connect(connect.link(), connect.serverKey());
    } else if (action instanceof Action.Disconnect disconnect) {
      sockets.disconnect(disconnect.link());
    } else if (action instanceof Action.Rebuild rebuild) {
      sockets.rebuild(rebuild.link());
    } else if (action instanceof Action.ResultTooLarge tooLarge) {
      RunLog.notReported(tooLarge.step(), tooLarge.result(), false);
    } else if (action instanceof Action.Quit) {
      hasQuit = true;
    }
  }

  private void log(Action.Log log) {
    events.log(log.level(), log.event(), log.facts());
    if (log.event().equals("worker_drains")) { // also by the order of a broker
      expelAtMs = Math.min(expelAtMs, Identity.nowMs() + drainMs);
    }
    lookForBrokers();
  }

  private void run(Run run) {
    Context context =
        new Context(
            run.step(),
            report -> mailbox.putRequest(() -> session.progressed(report, Identity.nowMs())));
    HandlerCall call = new HandlerCall(run, handlers.get(run.offer()), context, edge);
    calls.put(run.item(), call);
    runner.submit(call);
  }

  private void lookForBrokers() {
    search.update(session.linksWithoutSession(), Identity.nowMs());
  }

  private void cancel(Action.CancelRun action) {
    HandlerCall call = calls.get(action.item());
    if (call != null) {
      RunLog.interrupted(call.step(), action.reason());
      call.stop(action.reason());
    }
  }
}
