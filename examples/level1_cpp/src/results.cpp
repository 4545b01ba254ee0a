// Results and their outbox, progress, holding (SPEC 11).
#include "session.hpp"

#include <algorithm>
#include <cmath>

namespace stepwire {
namespace {
constexpr size_t kItemsMax = 1000;
}  // namespace

Session::Result Session::error_result(const ItemPtr& item, const char* code, const std::string& text) const {
  json error = {{"message", text}, {"code", item->at_most_once ? "outcome_unknown" : code}};
  if (!item->at_most_once) error["retryable"] = false;
  json value = {{"step_id", item->key.first}, {"delivery", item->key.second}, {"status", "error"}, {"output", nullptr}, {"error", error}, {"metadata", nullptr}};
  return {item, value, value.dump()};
}

void Session::ended(Key key, Outcome outcome) {
  auto found = items_.find(key);
  if (found == items_.end() || found->second->state != State::Running) {
    strays_.erase(key);
    return;
  }
  auto item = found->second;
  pace_ended_ += 1;
  item->state = State::Done;
  item->report_at = kNever;
  if (outcome.status != "completed" && item->at_most_once) {
    bool sdk = outcome.status == "error", input = sdk && outcome.error.value("code", json()) == "bad_input";
    if (!input && (sdk || item->lease_lost || !item->stop_reason.empty())) outcome.error["code"] = "outcome_unknown";
  }
  json value = {{"step_id", key.first}, {"delivery", key.second}, {"status", outcome.status}, {"output", outcome.output},
                {"error", outcome.error}, {"metadata", outcome.metadata}};
  Result result{item, value, ""};
  std::string problem = problem_of(value, 3);
  try {
    if (problem.empty()) result.text = value.dump();
  } catch (const json::exception& error) {
    problem = error.what();
  }
  if (!problem.empty()) result = error_result(item, "bad_output", "the result cannot be sent: " + problem);
  for (auto& p : pending_)
    if (p.owner == item->owner && p.batch_id == item->batch_id) return p.results.push_back(std::move(result));
  pending_.push_back({item->owner, item->batch_id, {std::move(result)}, now_ + 1});
}

void Session::render(Entry& e) const {
  Writer w = message("", "results");
  w.add("rid", e.rid).add("session", e.session).add("deployment", e.deployment).add("batch_id", e.batch_id).add("protocol_version", "2.0").add("n", e.n);
  if (!e.free.is_null()) w.add("free", e.free).add("slots_free", e.slots_free);
  std::string list = "[";
  for (auto& r : e.results) list += (list.size() > 1 ? "," : "") + r.text;
  e.frame_body = w.raw("results", list + "]").end();
}

bool Session::fits(const Entry& e, size_t bytes) const {
  auto b = brokers_.find(e.owner);
  return int64_t(bytes + e.owner.size() + 9) <= (b == brokers_.end() ? 4194304 : b->second.max_bytes);
}

void Session::flush(Pending& pending) { make_entry(pending.owner, pending.batch_id, std::move(pending.results), false); }

// Makes one or more messages of these results, each within the broker's size.
void Session::make_entry(const std::string& owner, const std::string& batch_id, std::vector<Result> results, bool replacement) {
  auto& b = broker(owner);
  size_t next = 0;
  while (next < results.size()) {
    Entry e{};
    e.rid = ++rid_, e.n = ++n_, e.owner = owner, e.batch_id = batch_id, e.due = now_, e.replacement = replacement, e.interval = 500;
    e.session = b.open ? b.session : results[next].item->session;
    e.deployment = results[next].item->deployment;
    if (b.open) {
      Credit c = spoken_credit(b);
      e.free = c.free, e.slots_free = c.slots_free;
    }
    render(e);
    size_t bytes = e.frame_body.size();
    for (; next < results.size() && e.results.size() < kItemsMax; next++) {
      auto& r = results[next];
      if (!e.results.empty() && !fits(e, bytes + r.text.size() + 1)) break;
      if (e.results.empty() && !fits(e, bytes + r.text.size()) && r.value["metadata"].is_object() && r.value["metadata"].contains("stderr")) {
        r.value["metadata"].erase("stderr");
        r.text = r.value.dump();
      }
      if (e.results.empty() && !fits(e, bytes + r.text.size())) r = error_result(r.item, "too_large", "the result is larger than the broker accepts");
      bytes += r.text.size() + 1;
      e.results.push_back(r);
    }
    render(e);
    for (auto at = accepts_.begin(); at != accepts_.end();) {
      if (at->broker == owner && at->batch_id == batch_id)
        for (auto& r : e.results) at->open.erase(r.item->key);
      at = at->open.empty() ? accepts_.erase(at) : std::next(at);
    }
    outbox_[e.rid] = std::move(e);
  }
}

void Session::send_entry(Entry& e) {
  e.tries++;
  send("results@" + e.owner + " " + e.frame_body);
  if (e.tries >= 3) send("results " + e.frame_body);
  e.due = now_ + e.interval;
  e.interval = std::min(5000.0, 2 * e.interval);
}

void Session::on_ack(const json& m) {
  for (auto& rid : m["rids"]) {
    auto found = outbox_.find(rid.get<int64_t>());
    if (found == outbox_.end()) continue;
    for (auto& r : found->second.results) bury(r.item);
    outbox_.erase(found);
  }
}

void Session::on_refused(const json& m) {
  const std::string code = m["code"], text = m["message"];
  log("the broker refused a message: " + code + ": " + clean(text));
  json rid = m.value("rid", json());
  auto found = rid.is_number_integer() ? outbox_.find(rid.get<int64_t>()) : outbox_.end();
  if (found == outbox_.end()) return;
  Entry e = std::move(found->second);
  outbox_.erase(found);
  static const std::set<std::string> final_codes = {"wrong_batch", "wrong_sender", "unknown_delivery", "unknown_session", "unknown_type"};
  bool forget = e.replacement || final_codes.count(code);
  for (auto& r : e.results) {
    if (forget) bury(r.item);
    else make_entry(e.owner, e.batch_id, {error_result(r.item, "result_refused", "the broker refused the result: " + code)}, true);
  }
}

void Session::progress(Key key, json done, json total, json note) {
  auto found = items_.find(key);
  if (found == items_.end() || found->second->state != State::Running) return;
  auto& item = found->second;
  if (note.is_string()) note = first_points(clean(note), 200);
  item->report = {key.first, key.second, done, total, note};
  if (!problem_of(item->report, 3).empty()) return;
  item->report_at = std::max(now_, item->reported + 200);
}

void Session::send_progress(const ItemPtr& item) {
  item->report_at = kNever;
  auto& b = broker(item->owner);
  if (!b.open) return;
  item->reported = now_;
  send(message("results@" + b.id + " ", "progress").add("session", b.session).add("items", json::array({item->report})).end());
}

json Session::holding() const {
  static const char* names[] = {"queued", "asking", "running", "done"};
  json held = json::array();
  for (auto& [order, item] : by_order_) {
    bool ran = item->state == State::Running || item->state == State::Done;
    held.push_back({item->key.first, item->key.second, names[int(item->state)], int64_t(std::max(0.0, now_ - (ran ? item->started : item->received)))});
  }
  return held;
}
}  // namespace stepwire
