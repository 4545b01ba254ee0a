package io.stepwire.protocol;

/** Reads one step of a {@code steps} message. Business data stays raw. */
final class StepDecoder {
  private static final int DEPTH = 3; // a step is in an array in the message

  private StepDecoder() {}

  static StepRequest read(JsonReader in, boolean mayNeedOpening) {
    Long stepId = null;
    Long taskId = null;
    Long delivery = null;
    String stepName = null;
    String handlerClass = null;
    Raw config = Raw.EMPTY_OBJECT;
    Raw context = Raw.EMPTY_OBJECT;
    Raw previous = Raw.EMPTY_OBJECT;
    Raw input = null;
    boolean isAtMostOnce = false;
    StepRequest.Metadata metadata = null;
    in.beginObject();
    while (in.nextMember()) {
      switch (in.name()) {
        case "step_id" -> stepId = Forms.id(in);
        case "task_id" -> taskId = Forms.id(in);
        case "step_name" -> stepName = in.string();
        case "handler_class" -> handlerClass = in.string();
        case "handler_config" -> config = in.raw(DEPTH);
        case "task_context" -> context = in.raw(DEPTH);
        case "previous_results" -> previous = in.raw(DEPTH);
        case "input" -> input = in.raw(DEPTH);
        case "delivery" -> delivery = Forms.id(in);
        case "delivery_mode" -> isAtMostOnce = isAtMostOnce(in.string());
        case "metadata" -> metadata = metadata(in);
        default -> in.skip(DEPTH);
      }
    }
    Item item =
        new Item(
            BrokerDecoder.need(stepId, "steps[…].step_id"),
            BrokerDecoder.need(delivery, "steps[…].delivery"));
    return new StepRequest(
        item,
        BrokerDecoder.need(taskId, "steps[…].task_id"),
        BrokerDecoder.need(stepName, "steps[…].step_name"),
        BrokerDecoder.need(handlerClass, "steps[…].handler_class"),
        config,
        context,
        previous,
        input,
        isAtMostOnce,
        mayNeedOpening,
        BrokerDecoder.need(metadata, "steps[…].metadata"));
  }

  private static boolean isAtMostOnce(String mode) {
    return switch (mode) {
      case "at_least_once" -> false;
      case "at_most_once" -> true;
      default -> throw new InvalidMessage("bad_field", "`steps[…].delivery_mode` is unknown");
    };
  }

  private static StepRequest.Metadata metadata(JsonReader in) {
    Long attempt = null;
    Long retryLimit = null;
    Long timeoutMs = null;
    String idempotencyKey = null;
    String traceparent = null;
    String tracestate = null;
    long deadlineMs = -1;
    boolean isShadow = false;
    in.beginObject();
    while (in.nextMember()) {
      switch (in.name()) {
        case "attempt" -> attempt = Forms.count(in);
        case "retry_limit" -> retryLimit = Forms.count(in);
        case "timeout_ms" -> timeoutMs = Forms.count(in);
        case "idempotency_key" -> idempotencyKey = in.string();
        case "traceparent" -> traceparent = textOrNull(in);
        case "tracestate" -> {
          tracestate = textOrNull(in);
          if (tracestate != null) {
            Forms.sized(tracestate, 0, Limits.TRACESTATE_MAX, "tracestate");
          }
        }
        case "deadline_ms" -> {
          if (in.isNull()) {
            in.nothing();
            deadlineMs = -1;
          } else {
            deadlineMs = Forms.count(in);
          }
        }
        case "shadow" -> isShadow = Forms.flag(in);
        default -> in.skip(DEPTH + 1);
      }
    }
    return new StepRequest.Metadata(
        BrokerDecoder.need(attempt, "metadata.attempt"),
        BrokerDecoder.need(retryLimit, "metadata.retry_limit"),
        BrokerDecoder.need(timeoutMs, "metadata.timeout_ms"),
        BrokerDecoder.need(idempotencyKey, "metadata.idempotency_key"),
        traceparent,
        tracestate,
        deadlineMs,
        isShadow);
  }

  private static String textOrNull(JsonReader in) {
    if (in.isNull()) {
      in.nothing();
      return null;
    }
    return in.string();
  }
}
