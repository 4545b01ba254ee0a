// Time, brokers and sessions: hello, heartbeats, leases (SPEC 7, 8, 14).
#include "session.hpp"

#include <algorithm>
#include <cmath>

namespace stepwire {
namespace {
constexpr double kUnlistedMs = 600000;
constexpr size_t kTombstonesKept = 20000;
}  // namespace

Session::Session(Config config) : config_(std::move(config)) {
  pace_ended_ = config_.prefetch >= 0 ? config_.prefetch : std::max(config_.slots, 10);
}

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
  for (auto& link : config_.links) pairs_.push_back({link, "", "", "", true, now_, now_});
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
    bool empty = outbox_.empty() && pending_.empty() && load() == 0;
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
    wake = std::min(wake, heard(p) + silence_of(p));
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

void Session::replace_database(Broker& b, const std::string& deployment, int64_t epoch) {
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
  b.epoch = epoch;
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
  if (found == brokers_.end() || !found->second.open || m.value("session", json()) != found->second.session) return;
  json batch = m.value("batch_id", json()), steps = m.value("steps", json());
  if (!batch.is_string() || batch == "" || !steps.is_array()) return;
  std::vector<Key> keys;
  for (auto& step : steps) {
    if (!step.is_object()) return;
    json id = step.value("step_id", json()), delivery = step.value("delivery", json());
    if (!id.is_number_unsigned() || !delivery.is_number_unsigned()) return;
    uint64_t a = id, d = delivery;
    if (a < 1 || d < 1 || a > 9007199254740991 || d > 9007199254740991) return;
    Key key{int64_t(a), int64_t(d)};
    if (!std::count(keys.begin(), keys.end(), key)) keys.push_back(key);
  }
  for (auto& key : keys)
    if (!items_.count(key) && !tombstones_.count(key)) bury(key, found->first, found->second.session, batch_number(batch));
  refuse(found->second, batch, keys, code);
}

void Session::on_here(const json& m) {
  auto& b = broker(m["broker"]);
  int64_t epoch = m["epoch"];
  const std::string deployment = m["deployment"];
  if (!b.known) b.known = true, order_.push_back(b.id);
  if (!b.deployment.empty() && b.deployment != deployment) return replace_database(b, deployment, epoch);
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
  if (!b.deployment.empty() && b.deployment != deployment) return replace_database(b, deployment, epoch);
  if (until <= now_ || epoch < b.epoch) return;
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
}  // namespace stepwire
