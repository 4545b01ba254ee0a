package io.stepwire.protocol;

/** The outcome of one delivery. {@code error} and {@code metadata} may be null. */
public record Result(
    Item item, Status status, byte[] output, ErrorDetail error, ResultMetadata metadata) {

  private static final byte[] NULL = {'n', 'u', 'l', 'l'};

  /** completed; failed: the handler failed the step; error: the step could not be run. */
  public enum Status {
    COMPLETED("completed"),
    FAILED("failed"),
    ERROR("error");

    private final String word;

    Status(String word) {
      this.word = word;
    }

    /** The word on the wire. */
    public String word() {
      return word;
    }
  }

  /** The result of a run that returned; {@code output} is JSON. */
  public static Result completed(Item item, byte[] output, ResultMetadata metadata) {
    return new Result(item, Status.COMPLETED, output, null, metadata);
  }

  /** The result of a run without an output. */
  public static Result without(
      Item item, Status status, ErrorDetail error, ResultMetadata metadata) {
    return new Result(item, status, NULL, error, metadata);
  }

  public Result withError(ErrorDetail other) {
    return new Result(item, status, output, other, metadata);
  }

  public Result withMetadata(ResultMetadata other) {
    return new Result(item, status, output, error, other);
  }

  void write(MessageWriter out) {
    out.begin();
    out.number("step_id", item.stepId());
    out.number("delivery", item.delivery());
    out.text("status", status.word);
    out.json("output", output);
    if (error == null) {
      out.nothing("error");
    } else {
      out.name("error");
      error.write(out);
    }
    if (metadata == null) {
      out.nothing("metadata");
    } else {
      out.name("metadata");
      metadata.write(out);
    }
    out.end();
  }
}
