package io.stepwire.runners;

import io.stepwire.Handler;
import io.stepwire.protocol.StepRequest;
import io.stepwire.protocol.Typed;
import io.stepwire.session.Offer;

/**
 * A registered handler: the function, the type of its input, and its settings. {@code version} may
 * be null.
 */
public record Registered(
    Handler<Object> function,
    Class<?> inputType,
    Offer offer,
    boolean isInterruptible,
    String version) {

  public String name() {
    return offer.pattern();
  }

  /** The decoded input. Throws {@code InvalidMessage} if it does not fit. */
  Object readInput(StepRequest step) {
    Object value = (step.input() == null ? step.taskContext() : step.input()).decode();
    return Typed.convert(value, inputType);
  }
}
