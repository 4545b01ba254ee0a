package io.stepwire.session;

/** One broker's pair of endpoints. */
public record Link(String steps, String results) {}
