package io.stepwire.driver;

import io.stepwire.protocol.ErrorDetail;
import io.stepwire.protocol.Item;
import io.stepwire.protocol.Json;
import io.stepwire.protocol.Limits;
import io.stepwire.protocol.ProgressItem;
import io.stepwire.protocol.Result;
import io.stepwire.protocol.ResultMetadata;
import io.stepwire.session.Config;
import io.stepwire.session.Link;
import io.stepwire.session.Offer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** One line of the kit, and the values in it. */
final class Op {
  private final Map<?, ?> members;

  Op(String line) {
    this((Map<?, ?>) Json.parse(line));
  }

  private Op(Map<?, ?> members) {
    this.members = members;
  }

  boolean has(String name) {
    return members.get(name) != null;
  }

  String text(String name) {
    return (String) members.get(name);
  }

  private String text(String name, String standard) {
    return has(name) ? text(name) : standard;
  }

  double number(String name) {
    return ((Number) members.get(name)).doubleValue();
  }

  private long whole(String name, long standard) {
    return has(name) ? ((Number) members.get(name)).longValue() : standard;
  }

  boolean flag(String name) {
    return Boolean.TRUE.equals(members.get(name));
  }

  private List<Op> list(String name) {
    List<Op> list = new ArrayList<>();
    if (has(name)) {
      ((List<?>) members.get(name)).forEach(each -> list.add(new Op((Map<?, ?>) each)));
    }
    return list;
  }

  private Item item() {
    return new Item(whole("step_id", 0), whole("delivery", 0));
  }

  Config config() {
    Config config = new Config();
    config.worker = text("worker");
    config.offers = list("offers").stream().map(Op::offer).toList();
    config.slots = (int) whole("slots", 1);
    config.prefetch = (int) whole("prefetch", -1);
    config.heartbeatMs = (int) whole("heartbeat_ms", Limits.HEARTBEAT_MS);
    Map<String, String> labels = new LinkedHashMap<>();
    if (has("labels")) {
      ((Map<?, ?>) members.get("labels")).forEach((k, v) -> labels.put((String) k, (String) v));
    }
    config.labels = labels;
    List<Link> links = list("links").stream().map(Op::link).toList();
    config.links = links.isEmpty() ? List.of(new Link("ipc://steps", "ipc://results")) : links;
    config.maxMessageBytes = (int) whole("max_message_bytes", Limits.MESSAGE_BYTES_MAX);
    config.acceptDelayMs = (int) whole("accept_delay_ms", 0);
    config.lang = text("lang", config.lang);
    config.sdk = text("sdk", "");
    config.host = text("host", "");
    config.handlerVersion = text("handler_version", "");
    config.pid = whole("pid", 0);
    config.pidStarted = whole("pid_started", 0);
    config.proof = flag("proof");
    config.curve = flag("curve");
    return config;
  }

  private Offer offer() {
    double timeoutMs = has("timeout_ms") ? number("timeout_ms") : 0;
    return new Offer(
        text("pattern"), (int) whole("concurrency", 0), timeoutMs, flag("shadow_safe"));
  }

  private Link link() {
    return new Link(text("steps"), text("results"));
  }

  Result completed() {
    ResultMetadata metadata = null;
    if (has("metadata")) {
      Op given = new Op((Map<?, ?>) members.get("metadata"));
      metadata =
          new ResultMetadata(
              (Number) given.members.get("execution_time_ms"),
              given.text("handler_version"),
              (Boolean) given.members.get("retryable"),
              given.text("stderr"));
    }
    return Result.completed(item(), Json.encode(members.get("output")), metadata);
  }

  Result failed() {
    List<String> backtrace = null;
    if (members.get("backtrace") instanceof List<?> lines) {
      backtrace = lines.stream().map(String::valueOf).toList();
    }
    ErrorDetail error =
        new ErrorDetail(
            text("message", ""),
            text("code"),
            text("category"),
            (Boolean) members.get("retryable"),
            has("retry_after_ms") ? whole("retry_after_ms", 0) : null,
            backtrace);
    boolean isError = "error".equals(text("status"));
    Result.Status status = isError ? Result.Status.ERROR : Result.Status.FAILED;
    return Result.without(item(), status, error, null);
  }

  ProgressItem progress() {
    return new ProgressItem(
        item(), (Number) members.get("done"), (Number) members.get("total"), text("note"));
  }
}
