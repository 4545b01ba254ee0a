// The session of a worker (SPEC 7 to 15): facts with a time go in, actions come out. No socket, clock or thread.
#pragma once
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "codec.hpp"

namespace stepwire {
constexpr double kNever = std::numeric_limits<double>::infinity();
using Key = std::pair<int64_t, int64_t>;  // step_id, delivery

struct Link {
  std::string steps, results;
  bool operator==(const Link& other) const { return steps == other.steps && results == other.results; }
};
struct Offer {
  std::string pattern;
  int concurrency = 0;    // 0: no limit of its own
  double timeout_ms = 0;  // 0: no limit of its own
  bool shadow_safe = false;
};
struct Config {
  std::string worker;
  std::vector<Offer> offers;
  int slots = 10, prefetch = -1;  // -1: the program declares none
  int64_t heartbeat_ms = 2000, max_message_bytes = 4194304;
  json labels = json::object();
  std::vector<Link> links;
  double accept_delay_ms = 0;
  std::string lang, sdk, host, handler_version;
  int64_t pid = 0, pid_started = 0;
  bool proof = false, curve = false;
  std::function<double()> random = [] { return 0.5; };
};
struct Action {
  enum Kind { Send, Run, Stop, Quit, Connect, Disconnect, Rebuild, Log } kind;
  std::string text{};  // the frame, the reason, the line
  Key key{};
  size_t offer = 0;
  std::shared_ptr<const json> step{};
  double lease_until = 0;  // the runner gives the step back if it starts it later
  Link link{};
  std::string server_key{};
};
struct Outcome {
  std::string status;
  json output, error, metadata;
};

class Session {
 public:
  explicit Session(Config config);
  // Every fact is between at() and actions().
  void at(double now);
  std::vector<Action> actions();
  void start();
  void receive(const std::string& frame);
  void ended(Key key, Outcome outcome);
  void give_back(Key key);  // the runner did not start this run
  void progress(Key key, json done, json total, json note);
  void quiet();
  void full(bool is_full);
  void drain();
  void expel();
  double wake_at() const;
  json holding() const;
  bool draining() const { return draining_; }

 private:
  enum class State { Queued, Asking, Running, Done };
  struct Item {
    Key key;
    uint64_t order;
    State state = State::Queued;
    std::string owner, batch_id, session, deployment, batch_session;
    int64_t batch_n = 0;
    std::shared_ptr<const json> step;
    size_t offer = 0;
    bool at_most_once = false, lease_lost = false;
    std::string stop_reason;
    double received = 0, started = 0, deadline = kNever, stop_at = kNever;
    double ask_at = kNever, ask_interval = 300;
    double reported = -kNever, report_at = kNever;
    json report;
  };
  using ItemPtr = std::shared_ptr<Item>;
  struct Broker {
    std::string id, session, deployment;
    bool known = false, open = false, leased = false, quiet = false, limited = false;
    int64_t k = 1, epoch = -1, n_after = 0, floor = 0;
    double lease_until = 0, lease_ms = 10000, opened = 0, drop_wait = 0, last_steps = -kNever, heard = -kNever;
    int64_t heartbeat_ms = 2000, max_bytes = 4194304;
    std::list<std::pair<int64_t, int64_t>> promises;  // n, free
    json list = json::array();
    bool key_logged = false;
    std::vector<std::string> keys;  // that it lists for itself, the current one first
  };
  struct Tombstone {
    double until;
    std::string broker, session;
    int64_t batch_n;
  };
  struct Result {
    ItemPtr item;
    json value;
    std::string text;
  };
  struct Entry {  // a results message in the outbox
    int64_t rid, n;
    std::string owner, session, deployment, batch_id, frame_body;
    std::vector<Result> results;
    json free, slots_free;
    int tries = 0;
    double due = 0, interval = 500;
    bool replacement = false;
  };
  struct Pending {  // results that wait for others of their batch
    std::string owner, batch_id;
    std::vector<Result> results;
    double due;
  };
  struct PendingAccept {
    std::string broker, batch_id;
    std::set<Key> open;
    double due;
  };
  struct Pair {
    Link link;
    std::string broker, server_key, used_key;  // used_key: empty before a listed key replaced the first one
    bool configured;
    double since, listed;
  };
  struct Credit { int64_t free = 0, slots_free = 0, left = 0; };

  Config config_;
  double now_ = 0;
  std::vector<Action> out_;
  std::map<std::string, Broker> brokers_;
  std::vector<std::string> order_;  // of learning
  std::map<Key, ItemPtr> items_;
  std::map<uint64_t, ItemPtr> by_order_;
  std::map<Key, ItemPtr> strays_;  // runs for a database that was replaced
  std::map<Key, Tombstone> tombstones_;
  std::deque<std::pair<double, Key>> expiries_;
  std::map<int64_t, Entry> outbox_;
  std::list<Pending> pending_;
  std::list<PendingAccept> accepts_;
  std::vector<Pair> pairs_;
  std::map<int64_t, double> sent_at_;
  uint64_t next_order_ = 0;
  int64_t n_ = 0, rid_ = 0, capacity_offered_ = 0, rotation_ = 0;
  double hello_at_ = kNever, hello_sent_ = -kNever, hello_interval_ = 250, heartbeat_at_ = kNever, return_at_ = kNever;
  bool hello_wanted_ = false, heartbeat_wanted_ = false, moved_ = false, quiet_ = false, full_ = false, draining_ = false, over_ = false;
  // the observed pace (SDK_GUIDE 7)
  double pace_at_ = 0, pace_ended_ = 10, pace_busy_ = 40;

  void emit(Action action) { out_.push_back(std::move(action)); }
  void send(std::string frame) { emit({Action::Send, std::move(frame)}); }
  void log(const std::string& line) { emit({Action::Log, line}); }
  Writer message(const std::string& topic, const char* type) const { return Writer(topic, type, config_.worker); }
  Broker& broker(const std::string& id);
  double jitter(double part) const { return 1 + part * (2 * config_.random() - 1); }
  double interval() const;

  void on_here(const json& m);
  void on_welcome(const json& m);
  void on_heartbeat_ack(Broker& b, const json& m);
  void on_steps(Broker& b, const json& m);
  void on_go(Broker& b, const json& m);
  void on_cancel(Broker& b, const json& m);
  void on_adopt(Broker& b, const json& m);
  void on_ack(const json& m);
  void on_reset(const json& m);
  void on_refused(const json& m);
  void salvage(std::string_view body, const char* code);

  void check_leases();
  void drop(Broker& b, const std::string& code);
  void close(Broker& b);
  void replace_database(Broker& b, const std::string& deployment, int64_t epoch);
  void want_hello();
  void send_hello();
  void send_heartbeat(bool regular);
  void send_bye();
  void add_credit(Writer& w, int64_t n);
  void bury(const ItemPtr& item);
  void bury(Key key, const std::string& owner, const std::string& session, int64_t batch_n);
  void erase(const ItemPtr& item);
  void refuse(Broker& b, const std::string& batch_id, const std::vector<Key>& items, const char* code);
  void refuse_items(const std::vector<ItemPtr>& items, const char* code);
  void accept(Broker& b, const std::string& batch_id);
  void ask_to_stop(const ItemPtr& item, const std::string& reason);
  void begin(const ItemPtr& item);
  void start_runs();
  void send_starts();
  void return_waiting();
  void send_progress(const ItemPtr& item);
  void flush(Pending& pending);
  void make_entry(const std::string& owner, const std::string& batch_id, std::vector<Result> results, bool replacement);
  void render(Entry& e) const;
  void send_entry(Entry& e);
  bool fits(const Entry& e, size_t bytes) const;
  Result error_result(const ItemPtr& item, const char* code, const std::string& text) const;
  int find_offer(const json& step) const;

  int64_t load() const;
  int64_t load_of(const std::string& id) const;
  int used_slots() const;
  int used_by(size_t offer) const;
  int64_t room() const;
  void fade();
  bool idle(const Broker& b) const;
  int64_t share(const Broker& b, int64_t total) const;
  Credit credit(Broker& b);
  Credit spoken_credit(Broker& b);  // also raises the promise
  static int64_t promised(const Broker& b);
  void settle(Broker& b, int64_t n);
  int known() const;

  void follow_lists(Broker& sender, const json& list);
  void note_listed();
  void follow_key(Broker& sender, const std::vector<std::string>& keys);
  void connect_with(Pair& pair, const std::string& key);
  double silence_of(const Pair& pair) const;
  void watch_pairs();
  double heard(const Pair& pair) const;
};
}  // namespace stepwire
