// Credit: room, shares, promises, and steps that go back (SPEC 9).
#include "session.hpp"

#include <algorithm>
#include <cmath>

namespace stepwire {
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
  if (load() <= config_.slots) {
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
}  // namespace stepwire
