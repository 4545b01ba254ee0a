package io.stepwire.session;

/**
 * A handler of this worker, by name or pattern. {@code concurrency} and {@code timeoutMs} are 0
 * without a limit of its own.
 */
public record Offer(String pattern, int concurrency, double timeoutMs, boolean isShadowSafe) {}
