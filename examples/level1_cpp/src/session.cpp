#include "session.hpp"

#include <algorithm>
#include <cmath>

namespace stepwire {
namespace {
constexpr double kTombstoneMs = 600000, kUnlistedMs = 600000, kRebuildMs = 15000;
constexpr size_t kTombstonesKept = 20000, kItemsMax = 1000;
json pair_of(const Key& key) { return json::array({key.first, key.second}); }
Key key_of(const json& item) { return {item[0].get<int64_t>(), item[1].get<int64_t>()}; }
}  // namespace

Session::Session(Config config) : config_(std::move(config)) {
  pace_ended_ = config_.prefetch >= 0 ? config_.prefetch : std::max(config_.slots, 10);
}

// ---- time ----

void Session::at(double now) {
  now_ = std::max(now, now_);
  fade();
  note_listed();
  while (!expiries_.empty()) {
    auto [until, key] = expiries_.front();
    auto found = tombstones_.find(key);
    if (found != tombstones_.end() && found->second.until == until) {
      auto& t = found->second;
      auto& b = broker(t.broker);
      bool numbered = t.batch_n > 0 && b.open && b.session == t.session;
      if (until > now_ && !(numbered && tombstones_.size() > kTombstonesKept)) break;
      if (numbered) b.floor = std::max(b.floor, t.batch_n);
      tombstones_.erase(found);
    }
    expiries_.pop_front();
  }
}

void Session::start() {
  for (auto& link : config_.links) pairs_.push_back({link, "", "", true, now_, now_});
  pace_at_ = now_;
  hello_at_ = now_;
  heartbeat_at_ = now_ + interval() * jitter(0.1);
}

std::vector<Action> Session::actions() {
  if (!over_) {
    check_leases();
    std::vector<ItemPtr> running;
    for (auto& [order, item] : by_order_)
      if (item->state == State::Running) running.push_back(item);
    for (auto& item : running)
      if (item->stop_at <= now_ && item->stop_reason.empty()) ask_to_stop(item, "timeout");
    start_runs();
    send_starts();
    return_waiting();
    for (auto at = accepts_.begin(); at != accepts_.end();)
      if (at->due <= now_) {
        auto one = *at;
        at = accepts_.erase(at);
        accept(broker(one.broker), one.batch_id);
      } else ++at;
    bool runs = std::any_of(items_.begin(), items_.end(), [](auto& one) { return one.second->state == State::Running; });
    for (auto at = pending_.begin(); at != pending_.end();) {
      bool whole = std::none_of(items_.begin(), items_.end(), [&](auto& one) {
        auto& item = *one.second;
        return item.state != State::Done && item.owner == at->owner && item.batch_id == at->batch_id;
      });
      if (whole || !runs || at->due <= now_ || room() <= 40) {
        auto one = std::move(*at);
        at = pending_.erase(at);
        flush(one);
      } else ++at;
    }
    for (auto& [rid, entry] : outbox_)
      if (entry.due <= now_) send_entry(entry);
    for (auto& item : running)
      if (item->report_at <= now_ && item->state == State::Running) send_progress(item);
    watch_pairs();
    if (hello_at_ <= now_) send_hello();
    bool empty = outbox_.empty() && pending_.empty() && strays_.empty() && load() == 0;
    if (heartbeat_at_ <= now_) {
      send_heartbeat(true);
    } else if (heartbeat_wanted_ || (draining_ && empty)) {
      send_heartbeat(false);
    }
    if (draining_ && empty) {
      over_ = true;
      emit({Action::Quit});
    }
  }
  return std::exchange(out_, {});
}

double Session::wake_at() const {
  if (over_) return kNever;
  double wake = std::min({hello_at_, heartbeat_at_, return_at_});
  for (auto& [id, b] : brokers_) if (b.leased) wake = std::min(wake, b.lease_until);
  for (auto& [key, item] : items_) {
    if (item->state == State::Running && item->stop_reason.empty()) wake = std::min(wake, item->stop_at);
    if (item->state == State::Running) wake = std::min(wake, item->report_at);
    if (item->state == State::Asking) {
      auto b = brokers_.find(item->owner);
      if (b != brokers_.end() && b->second.open) wake = std::min(wake, item->ask_at);
    }
  }
  for (auto& a : accepts_) wake = std::min(wake, a.due);
  for (auto& p : pending_) wake = std::min(wake, p.due);
  for (auto& [rid, e] : outbox_) wake = std::min(wake, e.due);
  for (auto& p : pairs_) {
    wake = std::min(wake, heard(p) + kRebuildMs);
    if (!p.configured) wake = std::min(wake, std::max(p.listed + kUnlistedMs, now_ + 1000));
  }
  return wake;
}

double Session::interval() const {
  int64_t ms = config_.heartbeat_ms;
  for (auto& [id, b] : brokers_)
    if (b.open) ms = std::min({ms, b.heartbeat_ms ? b.heartbeat_ms : 2000, int64_t(b.lease_ms) / 5});
  return double(std::max<int64_t>(ms, 100));
}

// ---- brokers and sessions ----

Session::Broker& Session::broker(const std::string& id) {
  auto& b = brokers_[id];
  b.id = id;
  return b;
}

int Session::known() const {
  return int(std::count_if(brokers_.begin(), brokers_.end(), [](auto& one) { return one.second.known; }));
}

void Session::check_leases() {
  for (auto& [id, b] : brokers_)
    if (b.leased && now_ >= b.lease_until) {
      log("the lease of " + id + " is over");
      drop(b, "lease");
    }
}

void Session::close(Broker& b) {
  b.open = false;
  accepts_.remove_if([&](auto& one) { return one.broker == b.id; });
}

void Session::drop(Broker& b, const std::string& code) {
  double wait;
  if (b.open && now_ - b.opened >= b.lease_ms / 2) b.drop_wait = 0;
  if (code == "version" || code == "unauthorized") {
    wait = b.drop_wait = 5000;
  } else {
    wait = b.drop_wait;
    b.drop_wait = std::min(5000.0, std::max(250.0, 2 * b.drop_wait));
  }
  log("the session with " + b.id + " ended: " + code);
  close(b);
  b.leased = false;
  b.k++;
  b.n_after = n_;
  std::vector<ItemPtr> mine;
  for (auto& [order, item] : by_order_) if (item->owner == b.id) mine.push_back(item);
  for (auto& item : mine) {
    if (item->state == State::Queued || item->state == State::Asking) bury(item);
    else if (item->state == State::Running) ask_to_stop(item, "lease_lost");
  }
  if (wait == 0) return want_hello();
  bool others = std::all_of(brokers_.begin(), brokers_.end(), [&](auto& one) { return &one.second == &b || !one.second.known || one.second.open; });
  hello_at_ = others ? now_ + wait : std::min(hello_at_, now_ + wait);
  hello_interval_ = 250;
}

void Session::replace_database(Broker& b, const std::string& deployment) {
  log("the broker " + b.id + " has another database: its deliveries are forgotten");
  std::vector<ItemPtr> mine;
  for (auto& [order, item] : by_order_) if (item->owner == b.id) mine.push_back(item);
  for (auto& item : mine) {
    if (item->state == State::Running) {
      ask_to_stop(item, "superseded");
      erase(item);
      strays_[item->key] = item;
    } else if (item->state == State::Done) {
      log("lost the result of step " + std::to_string(item->key.first) + ", delivery " + std::to_string(item->key.second));
      erase(item);
    }
  }
  for (auto at = outbox_.begin(); at != outbox_.end();) at = at->second.owner == b.id ? outbox_.erase(at) : std::next(at);
  pending_.remove_if([&](auto& one) { return one.owner == b.id; });
  drop(b, "deployment");
  for (auto at = tombstones_.begin(); at != tombstones_.end();) at = at->second.broker == b.id ? tombstones_.erase(at) : std::next(at);
  b.deployment = deployment;
  b.epoch = -1;
}

void Session::want_hello() {
  hello_wanted_ = true;
  hello_at_ = std::max(now_, hello_sent_ + 250 * jitter(0.2));
  hello_interval_ = 250;
}

void Session::send_hello() {
  Writer w = message("workers ", "hello");
  int64_t n = ++n_;
  json next = json::object(), sessions = json::object(), names = json::array(), shadow = json::array();
  for (auto& [id, b] : brokers_) {
    if (b.known) next[id] = b.k;
    if (b.open) sessions[id] = b.session;
  }
  for (auto& offer : config_.offers) {
    names.push_back(offer.pattern);
    if (offer.shadow_safe) shadow.push_back(offer.pattern);
  }
  w.add("n", n).add("versions", {"2.0"}).add("next", next);
  if (!sessions.empty()) w.add("sessions", sessions);
  w.add("handlers", names);
  if (!shadow.empty()) w.add("shadow_safe", shadow);
  if (!config_.labels.empty()) w.add("labels", config_.labels);
  w.add("slots", config_.slots).add("prefetch", config_.prefetch >= 0 ? config_.prefetch : std::max(config_.slots, 10));
  add_credit(w, n);
  json held = holding();
  if (!held.empty()) w.add("holding", held);
  if (config_.heartbeat_ms != 2000) w.add("heartbeat_ms", config_.heartbeat_ms);
  if (!config_.lang.empty()) w.add("lang", config_.lang);
  if (!config_.sdk.empty()) w.add("sdk", config_.sdk);
  if (!config_.handler_version.empty()) w.add("handler_version", config_.handler_version);
  if (!config_.host.empty()) w.add("host", config_.host);
  if (config_.pid) w.add("pid", config_.pid);
  if (config_.pid_started) w.add("pid_started", config_.pid_started);
  if (config_.proof) w.add("proof", true);
  if (config_.max_message_bytes != 4194304) w.add("max_message_bytes", config_.max_message_bytes);
  send(w.end());
  sent_at_[n] = now_;
  if (sent_at_.size() > 128) sent_at_.erase(sent_at_.begin());
  hello_sent_ = now_;
  hello_wanted_ = false;
  bool done = known() > 0 && std::all_of(brokers_.begin(), brokers_.end(), [](auto& one) { return !one.second.known || one.second.open; });
  hello_at_ = done ? kNever : now_ + hello_interval_ * jitter(0.2);
  hello_interval_ = std::min(1000.0, 2 * hello_interval_);
}

void Session::send_heartbeat(bool regular) {
  heartbeat_wanted_ = false;
  heartbeat_at_ = now_ + interval() * jitter(0.1);
  Writer w = message("workers ", "heartbeat");
  int64_t n = ++n_;
  json next = json::object(), sessions = json::object();
  for (auto& [id, b] : brokers_) {
    if (b.known) next[id] = b.k;
    if (b.open) sessions[id] = b.session;
  }
  w.add("n", n);
  if (!next.empty()) w.add("next", next);
  if (!sessions.empty()) w.add("sessions", sessions);
  if (regular) rotation_++, moved_ = false;
  add_credit(w, n);
  json held = holding();
  if (!held.empty()) w.add("holding", held);
  send(w.end());
  sent_at_[n] = now_;
  if (sent_at_.size() > 128) sent_at_.erase(sent_at_.begin());
  if (draining_) send_bye();
}

void Session::send_bye() {
  send(message("workers ", "bye").add("n", ++n_).end());
}

void Session::add_credit(Writer& w, int64_t n) {
  json free = json::object(), slots_free = json::object();
  for (auto& id : order_) {
    auto& b = broker(id);
    if (!b.known) continue;
    Credit c = credit(b);
    b.promises.push_back({n, c.free});
    if (b.promises.size() > 128) {
      auto oldest = b.promises.front();
      b.promises.pop_front();
      b.promises.front().second = std::max(b.promises.front().second, oldest.second);
    }
    b.limited = c.free < c.left;
    free[id] = c.free;
    slots_free[id] = c.slots_free;
  }
  if (!free.empty()) w.add("free", free).add("slots_free", slots_free);
}

void Session::receive(const std::string& frame) {
  if (over_) return;
  check_leases();
  size_t space = frame.find(' ');
  if (space == frame.npos) return;
  std::string topic = frame.substr(0, space + 1);
  bool own = topic == "@" + config_.worker + " ";
  if (!own && topic != "brokers ") return;
  std::string_view body = std::string_view(frame).substr(space + 1);
  if (int64_t(frame.size()) > config_.max_message_bytes) {
    log("refused a message: too_large");
    if (own) salvage(body, "too_large");
    return;
  }
  std::optional<json> decoded;
  try {
    decoded = decode(body);
  } catch (const Refused& error) {
    log("refused a message: " + error.code + ": " + error.what());
    if (own) salvage(body, "bad_message");
    return;
  }
  if (!decoded) return;
  const json& m = *decoded;
  const std::string type = m["type"];
  if (!own && type != "here") return;
  if (type == "here") return on_here(m);
  if (type == "welcome") return on_welcome(m);
  if (type == "reset") return on_reset(m);
  if (type == "ack") return on_ack(m);
  if (type == "refused") return on_refused(m);
  auto found = brokers_.find(m["broker"]);
  if (found == brokers_.end()) return;
  Broker& b = found->second;
  if (!b.open || m["session"] != b.session || m["epoch"] != b.epoch) return;
  if (type == "heartbeat_ack") on_heartbeat_ack(b, m);
  if (type == "steps") on_steps(b, m);
  if (type == "go") on_go(b, m);
  if (type == "cancel") on_cancel(b, m);
  if (type == "adopt") on_adopt(b, m);
}

// A steps message that breaks a rule is refused item by item, as far as it can be read (SPEC 18).
void Session::salvage(std::string_view body, const char* code) {
  json m = json::parse(body, nullptr, false);
  if (!m.is_object() || m.value("type", json()) != "steps" || !m.value("broker", json()).is_string()) return;
  auto found = brokers_.find(m["broker"]);
  if (found == brokers_.end() || !found->second.open || m.value("session", json()) != found->second.session ||
      m.value("epoch", json()) != found->second.epoch)
    return;
  json batch = m.value("batch_id", json()), steps = m.value("steps", json());
  if (!batch.is_string() || batch == "" || !steps.is_array()) return;
  std::vector<Key> keys;
  for (auto& step : steps) {
    if (!step.is_object()) continue;
    json id = step.value("step_id", json()), delivery = step.value("delivery", json());
    if (!id.is_number_unsigned() || !delivery.is_number_unsigned()) continue;
    uint64_t a = id, d = delivery;
    if (a < 1 || d < 1 || a > 9007199254740991 || d > 9007199254740991) continue;
    Key key{int64_t(a), int64_t(d)};
    if (items_.count(key) || std::count(keys.begin(), keys.end(), key)) continue;
    if (!tombstones_.count(key)) bury(key, found->first, found->second.session, batch_number(batch));
    keys.push_back(key);
  }
  refuse(found->second, batch, keys, code);
}

void Session::on_here(const json& m) {
  auto& b = broker(m["broker"]);
  int64_t epoch = m["epoch"];
  const std::string deployment = m["deployment"];
  if (!b.known) b.known = true, order_.push_back(b.id);
  if (!b.deployment.empty() && b.deployment != deployment) replace_database(b, deployment);
  if (epoch < b.epoch) return;
  b.deployment = deployment;
  if (epoch > b.epoch) close(b);
  b.epoch = epoch;
  b.n_after = n_;
  want_hello();
}

void Session::on_welcome(const json& m) {
  auto& b = broker(m["broker"]);
  int64_t epoch = m["epoch"], n = m["n"];
  const std::string deployment = m["deployment"], session = m["session"];
  if (!b.known) b.known = true, order_.push_back(b.id);
  if (session != std::to_string(epoch) + "." + std::to_string(b.k)) return;
  auto sent = sent_at_.find(n);
  if (sent == sent_at_.end() || n <= b.n_after) return;
  double lease_ms = double(m["lease_ms"].get<int64_t>()), until = sent->second + lease_ms * 0.97;
  if (until <= now_) return;
  if (!b.deployment.empty() && b.deployment != deployment) return replace_database(b, deployment);
  if (epoch < b.epoch) return;
  bool fresh = !b.open || b.session != session;
  b.heard = now_;
  b.deployment = deployment;
  b.epoch = epoch;
  b.lease_until = fresh ? until : std::max(b.lease_until, until);
  b.leased = true;
  b.lease_ms = lease_ms;
  b.heartbeat_ms = m["heartbeat_ms"];
  b.max_bytes = m["max_message_bytes"];
  settle(b, n);
  if (fresh) {
    close(b);
    b.open = true;
    b.quiet = false;
    b.session = session;
    b.opened = now_;
    b.floor = 0;
    log("a session with " + b.id + ": " + session);
    for (auto& [key, item] : items_)
      if (item->owner == b.id) {
        item->deployment = deployment;
        if (item->state == State::Asking) item->ask_at = now_, item->ask_interval = 300;
      }
    for (auto& [rid, e] : outbox_)
      if (e.owner == b.id) {
        e.session = session, e.deployment = deployment, e.due = now_;
        render(e);
      }
    heartbeat_wanted_ = true;
    bool all = std::all_of(brokers_.begin(), brokers_.end(), [](auto& one) { return !one.second.known || one.second.open; });
    if (all && !hello_wanted_) hello_at_ = kNever;
  }
  heartbeat_at_ = std::min(heartbeat_at_, now_ + interval() * jitter(0.1));
  follow_lists(b, m.value("brokers", json::array()));
}

void Session::on_heartbeat_ack(Broker& b, const json& m) {
  int64_t n = m["n"];
  auto sent = sent_at_.find(n);
  b.heard = now_;
  if (sent != sent_at_.end()) {
    b.lease_until = std::max(b.lease_until, sent->second + b.lease_ms * 0.97);
    int64_t before = promised(b);
    settle(b, n);
    if (promised(b) < before && !moved_ &&
        std::any_of(brokers_.begin(), brokers_.end(), [&](auto& one) { return &one.second != &b && one.second.open && one.second.limited; }))
      moved_ = heartbeat_wanted_ = true;
  }
  bool quiet = m.value("quiet", false);
  if (quiet != b.quiet) b.quiet = quiet, heartbeat_wanted_ = true;
  if (m.contains("brokers") && !m["brokers"].is_null()) follow_lists(b, m["brokers"]);
  if (m.value("quit", false)) drain();
}

void Session::on_reset(const json& m) {
  auto& b = broker(m["broker"]);
  if (!b.known) b.known = true, order_.push_back(b.id);
  if (m["next"] != b.k || m["epoch"] < b.epoch) return;
  b.epoch = m["epoch"];
  drop(b, m["code"]);
}

// ---- steps ----

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
  capacity_offered_ = std::max<int64_t>(capacity_offered_, config_.slots + room());
  for (auto& step : m["steps"]) {
    Key key{step["step_id"], step["delivery"]};
    if (!seen.insert(key).second) continue;
    auto found = items_.find(key);
    if (found != items_.end()) {
      auto& item = found->second;
      if (item->owner != b.id) refusals["stale"].push_back(key);
      else if (item->state != State::Done) kept.insert(key);
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
  if (config_.accept_delay_ms <= 0) return accept(b, batch_id);
  for (auto& one : accepts_) if (one.broker == b.id && one.batch_id == batch_id) return;
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

// ---- results ----

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

// ---- credit ----

int64_t Session::load() const {
  return std::count_if(items_.begin(), items_.end(), [](auto& one) { return one.second->state != State::Done; });
}
int64_t Session::load_of(const std::string& id) const {
  return std::count_if(items_.begin(), items_.end(), [&](auto& one) { return one.second->state != State::Done && one.second->owner == id; });
}
int Session::used_slots() const {
  return int(strays_.size()) + int(std::count_if(items_.begin(), items_.end(), [](auto& one) {
    return one.second->state == State::Running || one.second->state == State::Asking;
  }));
}
int Session::used_by(size_t offer) const {
  auto uses = [&](auto& one) { return one.second->offer == offer && (one.second->state == State::Running || one.second->state == State::Asking); };
  return int(std::count_if(items_.begin(), items_.end(), uses) + std::count_if(strays_.begin(), strays_.end(), uses));
}

// The observed pace fades only while there is a step to run.
void Session::fade() {
  if (!load()) {
    pace_at_ = now_;
    return;
  }
  double kept = std::exp(-(now_ - pace_at_) / 100);
  pace_at_ = now_;
  pace_ended_ *= kept;
  pace_busy_ = pace_busy_ * kept + 100 * (1 - kept);
}

int64_t Session::room() const {
  if (config_.prefetch == 0) return 0;
  int64_t room = pace_busy_ > 0 ? std::llround(pace_ended_ / pace_busy_ * 40) : 0;
  return std::clamp<int64_t>(std::max<int64_t>(room, config_.prefetch), 0, 2000);
}

bool Session::idle(const Broker& b) const {
  return load_of(b.id) == 0 && now_ - b.last_steps >= 2 * double(config_.heartbeat_ms);
}

int64_t Session::share(const Broker& b, int64_t total) const {
  std::vector<const Broker*> live;
  for (auto& id : order_) {
    auto& one = brokers_.at(id);
    if (one.open || one.id == b.id) live.push_back(&one);
  }
  auto part = [&](int64_t whole, const std::vector<const Broker*>& of, const Broker& who) {
    int64_t size = int64_t(of.size()), at = std::find(of.begin(), of.end(), &who) - of.begin();
    return whole / size + (((at - rotation_) % size + size) % size < whole % size);
  };
  std::vector<const Broker*> busy;
  int64_t lent = 0;
  for (auto* one : live) {
    if (!idle(*one)) busy.push_back(one);
    else lent += std::max<int64_t>(0, part(total, live, *one) - 1);
  }
  int64_t own = part(total, live, b);
  if (busy.empty() || busy.size() == live.size()) return own;
  if (idle(b)) return std::min<int64_t>(own, 1);
  return own + part(lent, busy, b);
}

int64_t Session::promised(const Broker& b) {
  int64_t most = 0;
  for (auto& [n, free] : b.promises) most = std::max(most, free);
  return most;
}

void Session::settle(Broker& b, int64_t n) {
  b.promises.remove_if([&](auto& one) { return one.first < n; });
}

Session::Credit Session::credit(Broker& b) {
  int64_t slots = config_.slots, capacity = slots + room(), held = load();
  if (draining_ || quiet_ || full_ || b.quiet) return {};
  capacity_offered_ = std::max(capacity_offered_, capacity);
  int64_t free = std::max<int64_t>(0, capacity - held), slots_free = std::max<int64_t>(0, slots - held);
  if (known() <= 1) return {free, std::min(free, slots_free), free};
  int64_t mine = load_of(b.id), left = std::min(share(b, capacity) - mine, capacity - held), others = 0;
  for (auto& [id, one] : brokers_) if (id != b.id && one.open) others += promised(one);
  free = std::max<int64_t>(0, std::min(left, capacity - held - others));
  slots_free = std::max<int64_t>(0, std::min({free, share(b, slots) - mine, slots - held}));
  return {free, slots_free, std::max<int64_t>(0, left)};
}

Session::Credit Session::spoken_credit(Broker& b) {
  Credit c = credit(b);
  if (b.promises.empty()) b.promises.push_back({0, c.free});
  else b.promises.back().second = std::max(b.promises.back().second, c.free);
  return c;
}

// Steps wait where they can start soonest: what exceeds twice the room goes back, the last received first.
void Session::return_waiting() {
  if (config_.prefetch == 0 || load() <= config_.slots) {
    return_at_ = kNever;
    return;
  }
  if (return_at_ == kNever) return_at_ = now_ + 20;
  if (return_at_ > now_) return;
  return_at_ = now_ + 20;
  int64_t room_now = room(), held = load(), capacity = config_.slots + room_now;
  bool several = known() > 1;
  if (held <= (several ? 2 * capacity : config_.slots + 2 * room_now)) return;
  std::vector<ItemPtr> back;
  for (auto at = by_order_.rbegin(); at != by_order_.rend() && held - int64_t(back.size()) > capacity; ++at) {
    auto& item = at->second;
    auto& b = broker(item->owner);
    if (item->state != State::Queued || !b.open) continue;
    if (several && load_of(b.id) - std::count_if(back.begin(), back.end(), [&](auto& one) { return one->owner == b.id; }) <= share(b, capacity)) continue;
    back.push_back(item);
  }
  if (!back.empty()) refuse_items(back, "busy");
}

// ---- orders of the program ----

void Session::quiet() {
  if (!quiet_) quiet_ = heartbeat_wanted_ = true;
}
void Session::full(bool is_full) {
  if (full_ != is_full) full_ = is_full, heartbeat_wanted_ = true;
}
void Session::drain() {
  if (draining_) return;
  draining_ = heartbeat_wanted_ = true;
  std::vector<ItemPtr> waiting;
  for (auto& [order, item] : by_order_)
    if (item->state == State::Queued || item->state == State::Asking) waiting.push_back(item);
  refuse_items(waiting, "draining");
}
void Session::expel() {
  for (auto& [order, item] : by_order_) if (item->state == State::Running) ask_to_stop(item, "shutdown");
  for (auto& [key, item] : strays_) ask_to_stop(item, "shutdown");
}

// ---- endpoints ----

void Session::follow_lists(Broker& sender, const json& list) {
  sender.list = list;
  std::vector<json> entries;
  for (auto& entry : list) {
    if (entry["steps"] == "" || entry["results"] == "") continue;
    if (!config_.curve && entry.contains("server_key") && !entry["server_key"].is_null()) {
      auto& b = broker(entry["broker"]);
      if (!b.key_logged) log("the list names a key for " + b.id + ", and this worker has none: ignored");
      b.key_logged = true;
      continue;
    }
    entries.push_back(entry);
  }
  for (auto& entry : entries)
    for (auto& pair : pairs_)
      if (pair.configured && pair.link == Link{entry["steps"], entry["results"]}) pair.broker = entry["broker"];
  std::vector<Pair*> nameless;
  for (auto& pair : pairs_) if (pair.configured && pair.broker.empty()) nameless.push_back(&pair);
  bool placed = std::any_of(pairs_.begin(), pairs_.end(), [&](auto& pair) { return pair.broker == sender.id; });
  if (nameless.size() == 1 && !placed) nameless[0]->broker = sender.id, nameless.clear();
  if (nameless.empty())
    for (auto& entry : entries) {
      Link link{entry["steps"], entry["results"]};
      std::string id = entry["broker"], key = entry.contains("server_key") && entry["server_key"].is_string() ? entry["server_key"] : json("");
      if (std::any_of(pairs_.begin(), pairs_.end(), [&](auto& pair) { return pair.broker == id || pair.link == link; })) continue;
      pairs_.push_back({link, id, key, false, now_, now_});
      Action action{Action::Connect};
      action.link = link, action.server_key = key;
      emit(action);
    }
  note_listed();
}

void Session::note_listed() {
  for (auto& [id, b] : brokers_)
    if (b.open)
      for (auto& entry : b.list)
        for (auto& pair : pairs_)
          if (!pair.configured && pair.broker == entry["broker"]) pair.listed = now_;
}

double Session::heard(const Pair& pair) const {
  double last = pair.since;
  for (auto& [id, b] : brokers_) {
    bool elsewhere = std::any_of(pairs_.begin(), pairs_.end(), [&](auto& one) { return one.broker == id; });
    if (pair.broker == id || (pair.broker.empty() && !elsewhere)) last = std::max(last, b.heard);
  }
  return last;
}

void Session::watch_pairs() {
  for (auto at = pairs_.begin(); at != pairs_.end();) {
    auto b = brokers_.find(at->broker);
    if (!at->configured && now_ - at->listed >= kUnlistedMs && (b == brokers_.end() || !b->second.open) &&
        std::none_of(items_.begin(), items_.end(), [&](auto& one) { return one.second->owner == at->broker; })) {
      if (b != brokers_.end()) {
        b->second.known = b->second.leased = false;
        order_.erase(std::remove(order_.begin(), order_.end(), at->broker), order_.end());
      }
      Action action{Action::Disconnect};
      action.link = at->link;
      emit(action);
      at = pairs_.erase(at);
      continue;
    }
    if (now_ >= heard(*at) + kRebuildMs) {
      at->since = now_;
      Action action{Action::Rebuild};
      action.link = at->link, action.server_key = at->server_key;
      emit(action);
    }
    ++at;
  }
}
}  // namespace stepwire
