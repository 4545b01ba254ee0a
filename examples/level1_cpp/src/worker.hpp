// Runs a session on two ZeroMQ sockets, and handlers on threads.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

#include "session.hpp"

namespace stepwire {
// What a handler throws when it fails on purpose. Any other exception is an ordinary error.
struct StepError : std::runtime_error {
  std::string code, category;
  json retryable, retry_after_ms;
  StepError(const std::string& text, std::string code_ = "", std::string category_ = "") : std::runtime_error(text), code(std::move(code_)), category(std::move(category_)) {}
};
struct Permanent : StepError {
  explicit Permanent(const std::string& text, const std::string& code = "") : StepError(text, code) { retryable = false; }
};
struct Retry : StepError {
  Retry(const std::string& text, int64_t after_ms) : StepError(text) { retry_after_ms = after_ms; }
};
struct OutcomeUnknown : StepError {
  explicit OutcomeUnknown(const std::string& text) : StepError(text, "outcome_unknown") {}
};
struct BadInput : StepError {
  explicit BadInput(const std::string& text) : StepError(text, "bad_input") {}
};
// The end of a run by the request to stop.
struct Stopped : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Run {
  Key key;
  size_t offer = 0;
  std::shared_ptr<const json> step;
  double lease_until = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::string reason;
  bool lease_lost = false;
};

class Context {
 public:
  using Report = std::function<void(json, json, json)>;
  Context(Run& run, Report report) : step(*run.step), run_(run), report_(std::move(report)) {}
  const json& step;
  const json& metadata() const { return step["metadata"]; }
  json member(const char* name) const { return step.value(name, json::object()); }
  json input() const { return step.contains("input") ? step["input"] : member("task_context"); }
  // Why this run was asked to stop; empty if it was not.
  std::string stop_reason();
  // Waits; returns early with the reason if the run is asked to stop.
  std::string wait(double ms);
  void progress(json done, json total = nullptr, json note = nullptr) { report_(std::move(done), std::move(total), std::move(note)); }

 private:
  Run& run_;
  Report report_;
};

double boot_clock_ms();

class Worker {
 public:
  using Handler = std::function<json(Context&)>;
  Worker& handle(const std::string& name, Handler handler, int concurrency = 0, double timeout_ms = 0);
  // Reads the environment, works until it has drained, and returns the exit code.
  int run(const std::string& default_name);

 private:
  std::vector<Offer> offers_;
  std::vector<Handler> handlers_;
};
}  // namespace stepwire
