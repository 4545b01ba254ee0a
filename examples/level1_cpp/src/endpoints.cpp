// The pairs of endpoints: lists of brokers, and silence (SPEC 14, 20).
#include "session.hpp"

#include <algorithm>
#include <cmath>

namespace stepwire {
namespace {
constexpr double kRebuildMs = 15000, kKeyRetryMs = 5000, kUnlistedMs = 600000;

std::vector<std::string> keys_of(const std::string& broker, const std::vector<json>& entries) {
  std::vector<std::string> keys;
  for (auto& entry : entries)
    if (entry["broker"] == broker && entry.contains("server_key") && entry["server_key"].is_string())
      keys.push_back(entry["server_key"]);
  return keys;
}
}  // namespace

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
      pairs_.push_back({link, id, key, "", false, now_, now_});
      Action action{Action::Connect};
      action.link = link, action.server_key = key;
      emit(action);
    }
  if (config_.curve) follow_key(sender, keys_of(sender.id, entries));
  note_listed();
}

// The sender's key has changed: its pair is connected again with the new one.
void Session::follow_key(Broker& sender, const std::vector<std::string>& keys) {
  if (keys.empty()) return;
  auto before = sender.keys.empty() ? keys : sender.keys;
  sender.keys = keys;
  for (auto& pair : pairs_)
    if (pair.broker == sender.id && before[0] != keys[0] && pair.used_key != keys[0]) connect_with(pair, keys[0]);
}

void Session::connect_with(Pair& pair, const std::string& key) {
  pair.since = now_;
  pair.used_key = pair.server_key = key;
  Action gone{Action::Disconnect}, again{Action::Connect};
  gone.link = again.link = pair.link;
  again.server_key = key;
  emit(gone);
  emit(again);
}

// The silence after which a pair is connected again: shorter if its broker has listed several keys.
double Session::silence_of(const Pair& pair) const {
  auto b = brokers_.find(pair.broker);
  return b != brokers_.end() && b->second.keys.size() > 1 ? kKeyRetryMs : kRebuildMs;
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
    auto keys = b == brokers_.end() ? std::vector<std::string>{} : b->second.keys;
    if (now_ < heard(*at) + silence_of(*at)) {
      ++at;
      continue;
    }
    if (!keys.empty()) {
      auto used = std::find(keys.begin(), keys.end(), at->used_key.empty() && keys.size() > 1 ? keys[0] : at->used_key);
      connect_with(*at, used == keys.end() || used + 1 == keys.end() ? keys[0] : *(used + 1));
    } else {
      at->since = now_;
      Action action{Action::Rebuild};
      action.link = at->link, action.server_key = at->server_key;
      emit(action);
    }
    ++at;
  }
}
}  // namespace stepwire
