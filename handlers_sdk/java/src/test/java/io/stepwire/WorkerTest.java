package io.stepwire;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.stepwire.worker.PlayedBroker;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.zeromq.ZMQ;

/** A worker on real sockets, with a played broker. */
@Timeout(30)
class WorkerTest {
  private PlayedBroker broker = new PlayedBroker(null);
  private Worker worker;

  private Worker worker(WorkerBuilder settings) {
    worker = settings.steps(broker.steps()).results(broker.results()).name("test").build();
    return worker;
  }

  @AfterEach
  void end() throws InterruptedException {
    if (worker != null) {
      worker.drain(Duration.ZERO);
      worker.await(Duration.ofSeconds(10));
    }
    broker.close();
  }

  @Test
  void aWorkerRunsAStepAndReportsItsResult() {
    worker(Worker.builder()).handle("echo", Object.class, (context, input) -> input).start();
    broker.welcome(10_000);
    broker.step(8127, "echo", "{\"a\":\"ä\"}");
    Map<?, ?> results = broker.next("results");
    Map<?, ?> result = (Map<?, ?>) ((List<?>) results.get("results")).get(0);
    assertEquals("completed", result.get("status"));
    assertEquals(Map.of("a", "ä"), result.get("output"));
  }

  @Test
  void heartbeatsGoOnWhileHandlersComputeOnAllCores() {
    CountDownLatch end = new CountDownLatch(1);
    int cores = Runtime.getRuntime().availableProcessors() + 1;
    worker(Worker.builder().slots(cores))
        .handle(
            "compute",
            Object.class,
            (context, input) -> {
              while (end.getCount() > 0) {
                Math.sqrt(2);
              }
              return null;
            })
        .start();
    broker.welcome(1_000);
    for (int i = 0; i < cores; i++) {
      broker.step(8127 + i, "compute", "{}");
    }
    String session = broker.session();
    for (int i = 0; i < 15; i++) { // three leases
      Map<?, ?> heartbeat = broker.next("heartbeat");
      assertEquals(Map.of("b1", session), heartbeat.get("sessions"));
      broker.acknowledge(heartbeat);
    }
    end.countDown();
    broker.next("results");
  }

  @Test
  void aResultThatEndedWhileTheBrokerWasAwayArrivesAfterItsReturn() {
    CountDownLatch end = new CountDownLatch(1);
    worker(Worker.builder())
        .handle(
            "wait",
            Object.class,
            (context, input) -> {
              end.await();
              return "late";
            })
        .start();
    broker.welcome(10_000);
    broker.step(8127, "wait", "{}");
    broker.next("accept");
    broker = broker.restarted();
    end.countDown();
    Map<?, ?> results = broker.next("results");
    assertEquals("late", ((Map<?, ?>) ((List<?>) results.get("results")).get(0)).get("output"));
  }

  @Test
  void aWorkerWithKeysReachesABrokerWithCurve() {
    broker.close();
    ZMQ.Curve.KeyPair server = ZMQ.Curve.generateKeyPair();
    ZMQ.Curve.KeyPair own = ZMQ.Curve.generateKeyPair();
    broker = new PlayedBroker(server);
    worker(Worker.builder().curve(new CurveKeys(server.publicKey, own.publicKey, own.secretKey)))
        .handle("echo", Object.class, (context, input) -> input)
        .start();
    broker.welcome(10_000);
    broker.step(8127, "echo", "{\"big\":\"" + "x".repeat(1 << 20) + "\"}");
    Map<?, ?> results = broker.next("results");
    Map<?, ?> result = (Map<?, ?>) ((List<?>) results.get("results")).get(0);
    String text = (String) ((Map<?, ?>) result.get("output")).get("big");
    assertEquals(1 << 20, text.length());
  }

  @Test
  void aWorkerThatDrainsFinishesItsRunsAndSaysBye() throws InterruptedException {
    CountDownLatch end = new CountDownLatch(1);
    worker(Worker.builder().slots(1))
        .handle(
            "wait",
            Object.class,
            (context, input) -> {
              end.await();
              return 1;
            })
        .start();
    broker.welcome(10_000);
    broker.step(8127, "wait", "{}");
    broker.next("accept");
    broker.step(8128, "wait", "{}");
    broker.next("accept");
    worker.drain();
    assertEquals("draining", broker.next("refuse").get("code"));
    broker.next("bye");
    end.countDown();
    broker.acknowledgeResults(broker.next("results"));
    assertTrue(worker.await(Duration.ofSeconds(5)));
  }

  @Test
  void aWorkerWithoutHandlersDoesNotStart() {
    Worker empty = Worker.builder().build();
    assertEquals(
        "the worker has no handlers: register some with worker.handle(...)",
        assertThrows(ConfigurationError.class, empty::start).getMessage());
  }

  @Test
  void aHandlerIsRegisteredOnceAndWithAValidName() {
    Worker one = Worker.builder().build().handle("a", Object.class, (context, input) -> 1);
    assertThrows(
        ConfigurationError.class, () -> one.handle("a", Object.class, (context, input) -> 1));
    assertThrows(
        ConfigurationError.class, () -> one.handle("a b", Object.class, (context, input) -> 1));
  }
}
