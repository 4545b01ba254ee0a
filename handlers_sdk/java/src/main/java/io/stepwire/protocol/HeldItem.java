package io.stepwire.protocol;

/** A delivery that a worker holds, its state, and the milliseconds since its start or receipt. */
public record HeldItem(Item item, String state, long ageMs) {}
