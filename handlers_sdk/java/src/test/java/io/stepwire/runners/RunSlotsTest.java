package io.stepwire.runners;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import io.stepwire.session.Offer;
import java.util.List;
import org.junit.jupiter.api.Test;

class RunSlotsTest {
  private static final List<Offer> OFFERS =
      List.of(new Offer("free", 0, 0, false), new Offer("limited", 1, 0, false));

  /** A call is the number of its handler's offer, and a letter. */
  private record Call(int offer, String letter) {}

  private final RunSlots<Call> slots = new RunSlots<>(2, OFFERS, Call::offer);

  @Test
  void callsStartInTheOrderOfTheirHandOverWhenASlotIsFree() {
    Call a = new Call(0, "a");
    Call b = new Call(0, "b");
    Call c = new Call(0, "c");
    Call d = new Call(0, "d");
    assertEquals(List.of(a, b), slots.add(List.of(a, b, c, d)));
    assertEquals(c, slots.release(a));
    assertEquals(d, slots.release(c));
    assertNull(slots.release(b));
    assertEquals(List.of(a), slots.add(List.of(a)));
  }

  @Test
  void aCallOfALimitedHandlerWaitsAndOthersPassIt() {
    Call first = new Call(1, "first");
    Call second = new Call(1, "second");
    Call other = new Call(0, "other");
    assertEquals(List.of(first, other), slots.add(List.of(first, second, other)));
    assertNull(slots.release(other));
    assertEquals(second, slots.release(first));
  }
}
