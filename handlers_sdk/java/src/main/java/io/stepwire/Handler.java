package io.stepwire;

/**
 * Does the work of one step. It returns the step's output, or throws: any exception is a failure
 * that may be retried, a {@link StepError} is more precise. Handlers run on several threads at a
 * time, up to the worker's slots.
 *
 * @param <I> the type of the input: a record, a {@code Map}, or any type that JSON can become
 */
@FunctionalInterface
public interface Handler<I> {
  /** Called once for each delivery of a step. */
  Object handle(Context context, I input) throws Exception;
}
