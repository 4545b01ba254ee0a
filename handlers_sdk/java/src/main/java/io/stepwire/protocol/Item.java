package io.stepwire.protocol;

/** One delivery of a step: its ids on the wire. */
public record Item(long stepId, long delivery) {
  @Override
  public int hashCode() {
    return Long.hashCode(stepId * 31 + delivery);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Item item && item.stepId == stepId && item.delivery == delivery;
  }
}
