package io.stepwire.protocol;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.stepwire.protocol.FromWorker.Accept;
import io.stepwire.protocol.FromWorker.Adopted;
import io.stepwire.protocol.FromWorker.Progress;
import io.stepwire.protocol.FromWorker.Results;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.junit.jupiter.api.Test;

/** The bytes of a worker's messages: compact, in the order of SPEC.md, defaults omitted. */
class CodecTest {
  private static final String WORKER = "shop-1:0123456789abcdef";
  private static final Item ITEM = new Item(8127, 1);

  private static String json(FromWorker message) {
    byte[] frame = Codec.frame(Topics.RESULTS, WORKER, message);
    return new String(frame, StandardCharsets.UTF_8);
  }

  @Test
  void anAcceptIsCompact() {
    assertEquals(
        "results {\"type\":\"accept\",\"v\":\"2.0\",\"worker\":\"shop-1:0123456789abcdef\","
            + "\"session\":\"7.1\",\"batch_id\":\"batch_5e1d_1\",\"free\":13,\"slots_free\":3}",
        json(new Accept("7.1", "batch_5e1d_1", 13, 3)));
  }

  @Test
  void resultsHaveAllMembersOfEachResult() {
    Result completed =
        Result.completed(ITEM, Json.encode("ä"), new ResultMetadata(12.5, null, null, null));
    ErrorDetail error = new ErrorDetail("no", "c", null, false, 5L, List.of("at x"));
    Result failed = Result.without(ITEM, Result.Status.FAILED, error, null);
    assertEquals(
        "results {\"type\":\"results\",\"v\":\"2.0\",\"worker\":\"shop-1:0123456789abcdef\","
            + "\"session\":\"7.1\",\"deployment\":\"d\",\"batch_id\":\"b_1\","
            + "\"protocol_version\":\"2.0\",\"rid\":2,\"n\":57,\"free\":11,\"slots_free\":1,"
            + "\"results\":[{\"step_id\":8127,\"delivery\":1,\"status\":\"completed\","
            + "\"output\":\"ä\",\"error\":null,\"metadata\":{\"execution_time_ms\":12.5}},"
            + "{\"step_id\":8127,\"delivery\":1,\"status\":\"failed\",\"output\":null,"
            + "\"error\":{\"message\":\"no\",\"code\":\"c\",\"retryable\":false,"
            + "\"retry_after_ms\":5,\"backtrace\":[\"at x\"]},\"metadata\":null}]}",
        json(new Results("7.1", "d", "b_1", 2, 57, 11, 1, List.of(completed, failed))));
  }

  @Test
  void itemsAreArrays() {
    assertEquals(
        "results {\"type\":\"adopted\",\"v\":\"2.0\",\"worker\":\"shop-1:0123456789abcdef\","
            + "\"session\":\"8.1\",\"items\":[[8127,1,\"running\",41000]]}",
        json(new Adopted("8.1", List.of(new HeldItem(ITEM, "running", 41000)))));
    assertEquals(
        "results {\"type\":\"progress\",\"v\":\"2.0\",\"worker\":\"shop-1:0123456789abcdef\","
            + "\"session\":\"8.1\",\"items\":[[8127,1,0.5,null,null]]}",
        json(new Progress("8.1", List.of(new ProgressItem(ITEM, 0.5, null, null)))));
  }
}
