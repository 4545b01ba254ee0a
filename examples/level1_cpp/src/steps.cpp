// Deliveries until they end: steps, start, go, cancel, adopt (SPEC 10, 12, 13, 14).
#include "session.hpp"

#include <algorithm>
#include <cmath>

namespace stepwire {
namespace {
constexpr double kTombstoneMs = 600000;
constexpr size_t kItemsMax = 1000;
json pair_of(const Key& key) { return json::array({key.first, key.second}); }
Key key_of(const json& item) { return {item[0].get<int64_t>(), item[1].get<int64_t>()}; }
}  // namespace

int Session::find_offer(const json& step) const {
  const std::string name = step["handler_class"];
  int found = -1;
  for (size_t i = 0; i < config_.offers.size(); i++)
    if (config_.offers[i].pattern == name) found = int(i);
  for (size_t i = 0; found < 0 && i < config_.offers.size(); i++)
    if (matches(config_.offers[i].pattern, name)) found = int(i);
  return found;
}

void Session::on_steps(Broker& b, const json& m) {
  const std::string batch_id = m["batch_id"];
  int64_t number = batch_number(batch_id), count = int64_t(m["steps"].size());
  if (idle(b) && count && std::any_of(brokers_.begin(), brokers_.end(), [&](auto& one) { return &one.second != &b && one.second.open; }))
    heartbeat_wanted_ = true;
  b.last_steps = now_;
  for (auto& [n, free] : b.promises) free = std::max<int64_t>(0, free - count);
  std::map<std::string, std::vector<Key>> refusals;
  std::set<Key> seen, kept;
  bool is_repeated = false;
  capacity_offered_ = std::max<int64_t>(capacity_offered_, config_.slots + room());
  for (auto& step : m["steps"]) {
    Key key{step["step_id"], step["delivery"]};
    if (!seen.insert(key).second) continue;
    auto found = items_.find(key);
    if (found != items_.end()) {
      auto& item = found->second;
      if (item->owner != b.id) refusals["stale"].push_back(key);
      else if (item->state != State::Done) kept.insert(key), is_repeated = true;
      else
        for (auto& [rid, e] : outbox_)
          for (auto& r : e.results) if (r.item == item) e.due = now_;
      if (item->owner == b.id && item->state == State::Done)
        for (auto& p : pending_) for (auto& r : p.results) if (r.item == item) p.due = now_;
      continue;
    }
    int offer = find_offer(step);
    const char* code = nullptr;
    bool buried = tombstones_.count(key);
    if (buried || (number && number <= b.floor)) code = "stale";
    else if (offer < 0) code = "unknown_handler";
    else if (draining_) code = "draining";
    else if (load() >= 2 * capacity_offered_ || strays_.count(key)) code = "busy";
    if (code) {
      refusals[code].push_back(key);
      if (!buried) bury(key, b.id, b.session, number);
      continue;
    }
    auto item = std::make_shared<Item>();
    item->key = key, item->order = next_order_++, item->owner = b.id, item->batch_id = batch_id, item->batch_n = number;
    item->session = item->batch_session = b.session, item->deployment = b.deployment, item->offer = size_t(offer);
    item->step = std::make_shared<const json>(step), item->received = now_;
    item->at_most_once = step.value("delivery_mode", "at_least_once") == "at_most_once";
    auto deadline = step["metadata"].find("deadline_ms");
    if (deadline != step["metadata"].end() && !deadline->is_null()) item->deadline = now_ + double(deadline->get<int64_t>());
    items_[key] = by_order_[item->order] = item;
    kept.insert(key);
  }
  for (auto& [code, keys] : refusals) refuse(b, batch_id, keys, code.c_str());
  if (kept.empty()) return;
  if (config_.accept_delay_ms <= 0 || is_repeated) {
    accepts_.remove_if([&](auto& one) { return one.broker == b.id && one.batch_id == batch_id; });
    return accept(b, batch_id);
  }
  accepts_.push_back({b.id, batch_id, kept, now_ + config_.accept_delay_ms});
}

void Session::accept(Broker& b, const std::string& batch_id) {
  if (!b.open) return;
  Credit c = spoken_credit(b);
  send(message("results@" + b.id + " ", "accept").add("session", b.session).add("batch_id", batch_id).add("free", c.free).add("slots_free", c.slots_free).end());
}

void Session::refuse(Broker& b, const std::string& batch_id, const std::vector<Key>& items, const char* code) {
  if (!b.open) return;
  for (size_t from = 0; from < items.size(); from += kItemsMax) {
    json list = json::array();
    for (size_t i = from; i < std::min(items.size(), from + kItemsMax); i++) list.push_back(pair_of(items[i]));
    Credit c = spoken_credit(b);
    send(message("results@" + b.id + " ", "refuse").add("session", b.session).add("batch_id", batch_id).add("items", list).add("code", code)
             .add("free", c.free).add("slots_free", c.slots_free).end());
  }
}

// Gives unstarted items back: a tombstone each, and one refuse for each batch.
void Session::refuse_items(const std::vector<ItemPtr>& items, const char* code) {
  std::map<std::pair<std::string, std::string>, std::vector<Key>> batches;
  for (auto& item : items) {
    bury(item);
    batches[{item->owner, item->batch_id}].push_back(item->key);
  }
  for (auto& [batch, keys] : batches) refuse(broker(batch.first), batch.second, keys, code);
}

void Session::erase(const ItemPtr& item) {
  items_.erase(item->key);
  by_order_.erase(item->order);
}

void Session::bury(Key key, const std::string& owner, const std::string& session, int64_t batch_n) {
  tombstones_[key] = {now_ + kTombstoneMs, owner, session, batch_n};
  expiries_.push_back({now_ + kTombstoneMs, key});
}

void Session::bury(const ItemPtr& item) {
  erase(item);
  bury(item->key, item->owner, item->batch_session, item->batch_n);
  for (auto at = accepts_.begin(); at != accepts_.end();) {
    if (at->broker == item->owner && at->batch_id == item->batch_id) at->open.erase(item->key);
    at = at->open.empty() ? accepts_.erase(at) : std::next(at);
  }
}

void Session::ask_to_stop(const ItemPtr& item, const std::string& reason) {
  if (reason == "lease_lost") {
    item->lease_lost = true;
    if (!item->stop_reason.empty()) return;
  } else {
    if (!item->stop_reason.empty()) return;
    item->stop_reason = reason;
  }
  Action action{Action::Stop, reason};
  action.key = item->key;
  emit(action);
}

void Session::begin(const ItemPtr& item) {
  auto& offer = config_.offers[item->offer];
  double limit = double((*item->step)["metadata"]["timeout_ms"].get<int64_t>());
  if (offer.timeout_ms > 0) limit = limit > 0 ? std::min(limit, offer.timeout_ms) : offer.timeout_ms;
  item->state = State::Running;
  item->started = now_;
  item->stop_at = std::min(limit > 0 ? now_ + limit : kNever, item->deadline);
  Action action{Action::Run};
  action.key = item->key, action.offer = item->offer, action.step = item->step;
  action.lease_until = broker(item->owner).lease_until;
  emit(action);
}

void Session::start_runs() {
  if (draining_) return;
  int used = used_slots();
  std::vector<ItemPtr> waiting;
  for (auto& [order, item] : by_order_) if (item->state == State::Queued) waiting.push_back(item);
  for (auto& item : waiting) {
    if (used >= config_.slots) break;
    auto& b = broker(item->owner);
    int limit = config_.offers[item->offer].concurrency;
    if (!b.leased || (limit > 0 && used_by(item->offer) >= limit)) continue;
    used++;
    if (item->at_most_once) item->state = State::Asking, item->ask_at = now_, item->ask_interval = 300;
    else begin(item);
  }
}

void Session::send_starts() {
  std::map<std::string, json> due;
  for (auto& [order, item] : by_order_)
    if (item->state == State::Asking && item->ask_at <= now_ && broker(item->owner).open) {
      due[item->owner].push_back(pair_of(item->key));
      item->ask_at = now_ + item->ask_interval;
      item->ask_interval = std::min(3000.0, 2 * item->ask_interval);
    }
  for (auto& [id, items] : due)
    for (size_t from = 0; from < items.size(); from += kItemsMax)
      send(message("results@" + id + " ", "start").add("session", broker(id).session)
               .add("items", json(items.begin() + long(from), items.begin() + long(std::min(items.size(), from + kItemsMax)))).end());
}

void Session::on_go(Broker& b, const json& m) {
  for (auto& one : m["items"]) {
    auto found = items_.find(key_of(one));
    if (found != items_.end() && found->second->owner == b.id && found->second->state == State::Asking) begin(found->second);
  }
}

void Session::on_cancel(Broker& b, const json& m) {
  std::vector<ItemPtr> given_back;
  for (auto& one : m["items"]) {
    Key key = key_of(one);
    auto found = items_.find(key);
    if (found == items_.end()) {
      if (!tombstones_.count(key)) bury(key, b.id, "", 0);
      continue;
    }
    auto item = found->second;
    if (item->owner != b.id) continue;
    if (item->state == State::Running) ask_to_stop(item, m["reason"]);
    else if (item->state != State::Done && !std::count(given_back.begin(), given_back.end(), item)) given_back.push_back(item);
  }
  refuse_items(given_back, "stale");
}

void Session::on_adopt(Broker& b, const json& m) {
  json answer = json::array();
  std::set<Key> seen;
  std::vector<ItemPtr> done;
  for (auto& one : m["items"]) {
    Key key = key_of(one);
    if (!seen.insert(key).second) continue;
    auto found = items_.find(key);
    if (found == items_.end()) {
      if (!tombstones_.count(key)) bury(key, b.id, "", 0);
      answer.push_back({key.first, key.second, "unknown", 0});
      continue;
    }
    auto item = found->second;
    bool moves = item->owner != b.id;
    static const char* names[] = {"queued", "asking", "running", "done"};
    bool ran = item->state == State::Running || item->state == State::Done;
    answer.push_back({key.first, key.second, names[int(item->state)], int64_t(std::max(0.0, now_ - (ran ? item->started : item->received)))});
    item->owner = b.id, item->session = b.session, item->deployment = b.deployment;
    if (moves) item->batch_session.clear();
    if (moves && item->state == State::Asking) item->ask_at = now_, item->ask_interval = 300;
    if (item->state == State::Done) done.push_back(item);
  }
  if (seen.empty()) return;
  send(message("results@" + b.id + " ", "adopted").add("session", b.session).add("items", answer).end());
  // Waiting results of moved items go out as they are, each to its owner now.
  for (auto at = pending_.begin(); at != pending_.end();) {
    bool touched = std::any_of(at->results.begin(), at->results.end(), [&](auto& r) { return std::count(done.begin(), done.end(), r.item); });
    if (!touched) { ++at; continue; }
    Pending mine{b.id, at->batch_id, {}, now_}, theirs{at->owner, at->batch_id, {}, now_};
    for (auto& r : at->results) (r.item->owner == b.id ? mine : theirs).results.push_back(r);
    at = pending_.erase(at);
    flush(mine);
    if (!theirs.results.empty()) flush(theirs);
  }
  std::vector<int64_t> rids;
  for (auto& [rid, e] : outbox_)
    if (std::any_of(e.results.begin(), e.results.end(), [&](auto& r) { return std::count(done.begin(), done.end(), r.item); })) rids.push_back(rid);
  for (auto rid : rids) {
    Entry& e = outbox_[rid];
    if (e.owner == b.id) {
      e.due = now_;
      continue;
    }
    if (std::all_of(e.results.begin(), e.results.end(), [&](auto& r) { return r.item->owner == b.id; })) {
      e.owner = b.id, e.session = b.session, e.deployment = b.deployment, e.due = now_;
      e.free = e.slots_free = nullptr;
      render(e);
      continue;
    }
    Entry old = std::move(e);
    outbox_.erase(rid);
    std::map<std::string, std::vector<Result>> parts;
    for (auto& r : old.results) parts[r.item->owner].push_back(r);
    for (auto& [owner, results] : parts) make_entry(owner, old.batch_id, results, old.replacement);
  }
}

void Session::give_back(Key key) {
  auto found = items_.find(key);
  if (found == items_.end() || found->second->state != State::Running) {
    strays_.erase(key);
    return;
  }
  auto& item = found->second;
  if (!broker(item->owner).leased || item->lease_lost || !item->stop_reason.empty() || draining_) return refuse_items({item}, "stale");
  item->state = item->at_most_once ? State::Asking : State::Queued;
  item->ask_at = now_;
}
}  // namespace stepwire
