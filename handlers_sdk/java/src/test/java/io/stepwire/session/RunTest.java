package io.stepwire.session;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class RunTest {
  private final Lease lease = new Lease();
  private final Run run = new Run(null, 0, lease, 50, 200);

  @Test
  void aRunDoesNotBeginAtTheEndOfItsLease() {
    lease.untilMs = 100;
    assertFalse(run.begin(100));
    assertFalse(run.hasStarted());
    assertTrue(run.begin(99));
    assertEquals(149, run.timeoutAtMs());
  }

  @Test
  void aRunThatWasTakenBackNeverBegins() {
    lease.untilMs = 100;
    assertTrue(run.takeBack());
    assertFalse(run.begin(1));
  }

  @Test
  void aRunThatHasBegunCannotBeTakenBack() {
    lease.untilMs = 100;
    assertTrue(run.begin(1));
    assertFalse(run.takeBack());
  }

  @Test
  void aMovedRunNeedsTheLeaseOfItsNewOwner() {
    lease.untilMs = 100;
    run.moveTo(new Lease());
    assertFalse(run.begin(1));
  }

  @Test
  void aDeadlineBeforeTheTimeoutEndsTheRun() {
    lease.untilMs = 1000;
    assertTrue(run.begin(180));
    assertEquals(200, run.timeoutAtMs());
  }
}
