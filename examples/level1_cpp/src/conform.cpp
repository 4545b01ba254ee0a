// The handlers of protocol/conformance/CONTRACT.md.
#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <limits>

#include "worker.hpp"

using namespace stepwire;

namespace {
double number(const json& object, const char* name, double otherwise) {
  return object.is_object() && object.contains(name) && object[name].is_number() ? object[name].get<double>() : otherwise;
}
std::string kind_of(Context& context) {
  json input = context.input();
  return input.is_object() && input.contains("kind") && input["kind"].is_string() ? input["kind"].get<std::string>() : "";
}

json fail(Context& context) {
  std::string kind = kind_of(context);
  if (kind == "permanent") throw Permanent("told to fail for good", "conform");
  if (kind == "retry") throw Retry("told to fail for now", 1500);
  if (kind == "unknown") throw OutcomeUnknown("told not to know");
  if (kind == "unavailable") throw StepError("told that a resource is away", "", "unavailable");
  throw std::runtime_error("told to fail");
}

json wait(Context& context) {
  json input = context.input();
  double ms = number(input, "ms", 0), from = boot_clock_ms();
  bool ignore = input.is_object() && input.contains("ignore") && input["ignore"] == true;
  std::string reason;
  if (ignore) usleep(useconds_t(ms * 1000));
  else reason = context.wait(ms);
  return {{"stopped", reason.empty() ? json() : json(reason)}, {"ms", boot_clock_ms() - from}};
}

json compute(Context& context) {
  double from = boot_clock_ms(), ms = number(context.input(), "ms", 0);
  volatile double sum = 0;
  while (boot_clock_ms() - from < ms)
    for (int i = 1; i < 1000; i++) sum = sum + std::sqrt(double(i));
  return {{"ms", boot_clock_ms() - from}};
}

json bad_output(Context& context) {
  std::string kind = kind_of(context);
  if (kind == "nan") return {{"value", std::numeric_limits<double>::quiet_NaN()}};
  if (kind == "bigint") return {{"value", 9007199254740993}};
  if (kind == "nul") return {{"value", std::string("a\0b", 3)}};
  if (kind == "surrogate") return {{"value", "\xED\xA0\x80"}};
  return {{"value", json::binary({1, 2, 3})}};
}

json context_of(Context& context) {
  auto& meta = context.metadata();
  return {{"step_id", context.step["step_id"]}, {"task_id", context.step["task_id"]}, {"attempt", meta["attempt"]},
          {"delivery", context.step["delivery"]}, {"idempotency_key", meta["idempotency_key"]}, {"traceparent", meta.value("traceparent", json())},
          {"tracestate", meta.value("tracestate", json())}, {"config", context.member("handler_config")},
          {"results", context.member("previous_results")}, {"handler_class", context.step["handler_class"]}};
}

json typed(Context& context) {
  json input = context.input();
  if (!input.is_object() || !input.contains("order_id") || !input["order_id"].is_number_integer()) throw BadInput("`order_id` is not an integer");
  json order = {{"order_id", input["order_id"]}};
  if (input.contains("note")) {
    if (!input["note"].is_string()) throw BadInput("`note` is not a string");
    order["note"] = input["note"];
  }
  return order;
}

int64_t nanoseconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

json book(Context& context) {
  const char* folder = getenv("CONFORM_BOOK");
  if (!folder) throw Permanent("the variable CONFORM_BOOK is not set");
  const char* name = getenv("STEPWIRE_NAME");
  auto& meta = context.metadata();
  json config = context.member("handler_config"), key = meta["idempotency_key"], seen = json::object();
  int64_t step = context.step["step_id"], delivery = context.step["delivery"];
  json results = context.member("previous_results");
  for (auto& [dependency, output] : results.items())
    seen[dependency] = output.is_object() && output.contains("token") ? output["token"] : json();
  auto write_line = [&](const char* event, json more) {
    more.update({{"event", event}, {"at", nanoseconds(CLOCK_BOOTTIME)}, {"wall", nanoseconds(CLOCK_REALTIME)}, {"step_id", step},
                 {"task_id", context.step["task_id"]}, {"step", context.step["step_name"]}, {"delivery", delivery}, {"attempt", meta["attempt"]}, {"pid", getpid()}});
    std::string path = std::string(folder) + "/worker-" + (name ? name : "conform") + "-" + std::to_string(getpid()) + ".jsonl", line = more.dump() + "\n";
    int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0 || write(file, line.data(), line.size()) != ssize_t(line.size())) throw std::runtime_error("cannot write to " + path);
    close(file);
  };
  write_line("started", {{"mode", context.step.value("delivery_mode", "at_least_once")}, {"key", key}, {"seen", seen}});
  std::string reason = context.wait(number(config, "work_ms", 0));
  if (!reason.empty()) {
    write_line("stopped", {{"reason", reason}});
    throw StepError("asked to stop: " + reason, "stopped");
  }
  write_line("effect", {{"key", key}});
  if (double(meta["attempt"].get<int64_t>()) < number(config, "failures", 0)) {
    write_line("failed", json::object());
    throw StepError("told to fail", "told_to");
  }
  write_line("finished", json::object());
  return {{"token", std::to_string(step) + "/" + std::to_string(delivery) + "/" + std::to_string(getpid())}};
}
}  // namespace

int main() {
  Worker worker;
  worker.handle("conform.echo", [](Context& c) { return c.input(); });
  worker.handle("conform.fail", fail);
  worker.handle("conform.crash", [](Context&) -> json { _exit(70); });
  worker.handle("conform.wait", wait);
  worker.handle("conform.compute", compute);
  worker.handle("conform.big", [](Context& c) -> json { return {{"text", std::string(size_t(number(c.input(), "bytes", 0)), 'x')}}; });
  worker.handle("conform.bad_output", bad_output);
  worker.handle("conform.context", context_of);
  worker.handle("conform.trace", [](Context& c) -> json { return {{"traceparent", c.metadata().value("traceparent", json())}}; });
  worker.handle("conform.progress", [](Context& c) {
    c.progress(1, 2, "half");
    c.wait(number(c.input(), "ms", 0));
    return json::object();
  });
  worker.handle("conform.book", book);
  worker.handle("conform.typed", typed);
  worker.handle("conform.limited", wait, 2);
  worker.handle("conform.short", wait, 0, 300);
  return worker.run("conform");
}
