package io.stepwire.protocol;

/** The progress of a run: {@code done} of {@code total} (or null), and a note (or null). */
public record ProgressItem(Item item, Number done, Number total, String note) {}
