package io.stepwire.testing;

import io.stepwire.protocol.ErrorDetail;
import io.stepwire.protocol.Typed;
import java.util.List;

/**
 * The result that a worker would have reported. {@code status}: completed, failed or error. {@code
 * output} is decoded from its JSON, as a dependent step would read it; {@code error} is null if the
 * run completed.
 */
public record Outcome(
    String status, Object output, ErrorDetail error, List<RecordedProgress> progress) {

  /** One call of {@code Context.progress}. */
  public record RecordedProgress(Number done, Number total, String note) {}

  public boolean isCompleted() {
    return status.equals("completed");
  }

  /** The output as a record or another type. */
  @SuppressWarnings("unchecked") // Typed.convert returns what the type names
  public <T> T output(Class<T> type) {
    return (T) Typed.convert(output, type);
  }
}
