#include "worker.hpp"

#include <cxxabi.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <random>
#include <sstream>
#include <thread>
#include <zmq.hpp>

namespace stepwire {
namespace {
constexpr double kDrainMs = 25000, kDrainEndMs = 27000;

void say(const std::string& line) { fprintf(stderr, "stepwire: %s\n", line.c_str()); }

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = getenv(name);
  return value && *value ? value : otherwise;
}

struct BadSetting : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    size_t from = part.find_first_not_of(' '), to = part.find_last_not_of(' ');
    if (from != part.npos) parts.push_back(part.substr(from, to - from + 1));
  }
  return parts;
}

struct Keys { std::string server, open, secret; };

Keys keys_of_environment() {
  std::map<std::string, std::string> values;
  std::string path = variable("STEPWIRE_CURVE_FILE", "");
  if (!path.empty()) {
    struct stat status {};
    if (stat(path.c_str(), &status)) throw BadSetting("STEPWIRE_CURVE_FILE names a file that cannot be read: " + path);
    if (status.st_mode & 077) throw BadSetting("STEPWIRE_CURVE_FILE names a file that its group or others can read: " + path);
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      size_t at = line.find('=');
      if (at == line.npos || line[0] == '#') continue;
      std::string value = line.substr(at + 1);
      if (value.size() >= 2 && (value[0] == '\'' || value[0] == '"') && value.back() == value[0]) value = value.substr(1, value.size() - 2);
      values[line.substr(0, at)] = value;
    }
  }
  auto key = [&](const char* name) {
    std::string value = variable(name, values[name]);
    if (!value.empty() && value.size() != 40) throw BadSetting(std::string(name) + " is not a key of 40 characters");
    return value;
  };
  Keys keys{key("STEPWIRE_CURVE_SERVER_KEY"), key("STEPWIRE_CURVE_PUBLIC_KEY"), key("STEPWIRE_CURVE_SECRET_KEY")};
  int present = !keys.server.empty() + !keys.open.empty() + !keys.secret.empty();
  if (present != 0 && present != 3)
    throw BadSetting("STEPWIRE_CURVE_SERVER_KEY, STEPWIRE_CURVE_PUBLIC_KEY and STEPWIRE_CURVE_SECRET_KEY are needed together, and one is missing");
  return keys;
}

// host, pid, pid_started and proof (SPEC 15.3).
void identify(Config& c) {
  c.pid = getpid();
  char link[64] = {}, host[256] = "?";
  std::string boot;
  struct stat pid_ns {}, time_ns {};
  bool own = readlink("/proc/self", link, sizeof link - 1) > 0 && link == std::to_string(c.pid);
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::stringstream all;
  all << std::ifstream("/proc/self/stat").rdbuf();
  std::string text = all.str();
  if (own && boot.size() == 36 && !stat("/proc/self/ns/pid", &pid_ns) && text.rfind(')') != text.npos) {
    if (stat("/proc/self/ns/time", &time_ns)) time_ns.st_ino = 0;
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string field;
    for (int i = 3; i <= 22; i++) fields >> field;
    c.host = boot + ":" + std::to_string(pid_ns.st_ino) + ":" + std::to_string(time_ns.st_ino);
    c.pid_started = std::stoll(field);
    c.proof = true;
    return;
  }
  gethostname(host, sizeof host - 1);
  c.host = std::string("linux:") + host;
}

Config config_of_environment(const std::string& default_name, std::vector<Offer> offers, bool curve) {
  Config c;
  c.offers = std::move(offers);
  std::string name = variable("STEPWIRE_NAME", default_name);
  if (name.size() > 48 || name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") != name.npos)
    throw BadSetting("STEPWIRE_NAME is not a name of 1 to 48 letters, digits, '.', '_' and '-'");
  std::random_device device;
  char digits[17];
  snprintf(digits, sizeof digits, "%08x%08x", device(), device());
  c.worker = name + ":" + digits;
  try {
    size_t end = 0;
    std::string slots = variable("STEPWIRE_SLOTS", "10");
    c.slots = std::stoi(slots, &end);
    if (c.slots < 1 || c.slots > 10000 || end != slots.size()) throw std::out_of_range("slots");
  } catch (const std::exception&) {
    throw BadSetting("STEPWIRE_SLOTS is not a number of at least 1");
  }
  for (auto& label : split(variable("STEPWIRE_LABELS", ""))) {
    size_t at = label.find('=');
    if (at == label.npos || at == 0) throw BadSetting("STEPWIRE_LABELS is not a list like region=eu,gpu=true");
    c.labels[label.substr(0, at)] = label.substr(at + 1);
  }
  auto steps = split(variable("STEPWIRE_STEPS", "ipc://.stepwire/steps.sock")), results = split(variable("STEPWIRE_RESULTS", "ipc://.stepwire/results.sock"));
  if (steps.size() != results.size()) throw BadSetting("STEPWIRE_STEPS and STEPWIRE_RESULTS name different numbers of endpoints");
  for (size_t i = 0; i < steps.size(); i++) c.links.push_back({steps[i], results[i]});
  c.handler_version = first_points(variable("STEPWIRE_HANDLER_VERSION", ""), 65);
  if (first_points(c.handler_version, 64) != c.handler_version) throw BadSetting("STEPWIRE_HANDLER_VERSION has more than 64 characters");
  c.lang = "cpp", c.sdk = "level1_cpp 0.1.0", c.curve = curve;
  auto engine = std::make_shared<std::mt19937>(device());
  c.random = [engine] { return std::uniform_real_distribution<>(0, 1)(*engine); };
  identify(c);
  return c;
}

std::string type_name(const std::exception& error) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status), free);
  return status == 0 ? name.get() : typeid(error).name();
}

// The outcome of one run: what the handler returned or threw.
Outcome outcome_of(Run& run, const Worker::Handler& handler, Context& context, const std::string& version) {
  Outcome out{"failed", nullptr, nullptr, json::object()};
  double from = boot_clock_ms();
  auto reason = [&] { return context.stop_reason(); };
  std::string type = "unknown";
  try {
    out.output = handler(context);
    out.status = "completed";
  } catch (const BadInput& error) {
    out.status = "error";
    out.error = {{"message", clean(error.what())}, {"code", "bad_input"}, {"retryable", false}};
  } catch (const StepError& error) {
    out.error = {{"message", clean(error.what())}};
    if (!error.code.empty()) out.error["code"] = clean(error.code);
    if (!error.category.empty()) out.error["category"] = clean(error.category);
    if (!error.retryable.is_null()) out.error["retryable"] = error.retryable;
    if (!error.retry_after_ms.is_null()) out.error["retry_after_ms"] = error.retry_after_ms;
  } catch (const Stopped& error) {
    out.error = {{"message", clean(error.what())}, {"code", reason().empty() ? "stepwire::Stopped" : "cancelled"}};
  } catch (const std::exception& error) {
    type = type_name(error);
    out.error = {{"message", clean(type + ": " + error.what())}, {"code", clean(type)}};
  } catch (...) {
    out.error = {{"message", "unknown: an exception that is no std::exception"}, {"code", "unknown"}};
  }
  if (out.status == "failed" && reason() == "timeout") {
    out.error["code"] = "timeout";
    out.error.erase("retryable");
  }
  out.metadata["execution_time_ms"] = std::round((boot_clock_ms() - from) * 1000) / 1000;
  if (!version.empty()) out.metadata["handler_version"] = version;
  if (out.status != "completed")
    say("step " + std::to_string(run.key.first) + " " + run.step->value("step_name", "") + ", attempt " +
        std::to_string((*run.step)["metadata"]["attempt"].get<int64_t>()) + ": " + out.error["message"].get<std::string>());
  return out;
}

class Sockets {
 public:
  Sockets(const std::string& worker, const Keys& keys) : sub_(context_, ZMQ_SUB), pub_(context_, ZMQ_PUB), keys_(keys) {
    for (auto* socket : {&sub_, &pub_}) {
      set(*socket, ZMQ_LINGER, 0), set(*socket, ZMQ_IMMEDIATE, 0), set(*socket, ZMQ_HEARTBEAT_IVL, 0), set(*socket, ZMQ_HANDSHAKE_IVL, 5000);
      set(*socket, ZMQ_TCP_KEEPALIVE, 1), set(*socket, ZMQ_TCP_KEEPALIVE_IDLE, 15), set(*socket, ZMQ_TCP_KEEPALIVE_INTVL, 5);
      set(*socket, ZMQ_TCP_KEEPALIVE_CNT, 3), set(*socket, ZMQ_RECONNECT_IVL, 100), set(*socket, ZMQ_RECONNECT_IVL_MAX, 1000);
    }
    set(sub_, ZMQ_SNDHWM, 1000), set(sub_, ZMQ_RCVHWM, 0), set(pub_, ZMQ_SNDHWM, 10000), set(pub_, ZMQ_RCVHWM, 1000);
    set(pub_, ZMQ_TCP_MAXRT, 20000);
    int64_t sub_size = 8 << 20, pub_size = 64 << 10;
    zmq_setsockopt(sub_.handle(), ZMQ_MAXMSGSIZE, &sub_size, sizeof sub_size);
    zmq_setsockopt(pub_.handle(), ZMQ_MAXMSGSIZE, &pub_size, sizeof pub_size);
    for (const std::string& topic : {"@" + worker + " ", std::string("brokers ")}) zmq_setsockopt(sub_.handle(), ZMQ_SUBSCRIBE, topic.data(), topic.size());
  }
  void connect(const Link& link, const std::string& server_key) {
    if (!keys_.open.empty())
      for (auto* socket : {&sub_, &pub_}) {
        const std::string& server = server_key.empty() ? keys_.server : server_key;
        zmq_setsockopt(socket->handle(), ZMQ_CURVE_SERVERKEY, server.c_str(), 41);
        zmq_setsockopt(socket->handle(), ZMQ_CURVE_PUBLICKEY, keys_.open.c_str(), 41);
        zmq_setsockopt(socket->handle(), ZMQ_CURVE_SECRETKEY, keys_.secret.c_str(), 41);
      }
    if (zmq_connect(sub_.handle(), link.steps.c_str())) say("cannot connect to " + link.steps + ": " + zmq_strerror(errno));
    if (zmq_connect(pub_.handle(), link.results.c_str())) say("cannot connect to " + link.results + ": " + zmq_strerror(errno));
  }
  void disconnect(const Link& link) {
    zmq_disconnect(sub_.handle(), link.steps.c_str());
    zmq_disconnect(pub_.handle(), link.results.c_str());
  }
  void send(const std::string& frame) { zmq_send(pub_.handle(), frame.data(), frame.size(), ZMQ_DONTWAIT); }
  // The next frame, without waiting; messages of several frames are skipped.
  bool receive(std::string& frame) {
    for (;;) {
      zmq::message_t part;
      if (!sub_.recv(part, zmq::recv_flags::dontwait)) return false;
      if (!part.more()) return frame = part.to_string(), true;
      while (part.more()) (void)sub_.recv(part, zmq::recv_flags::none);
      say("ignored a message of several frames");
    }
  }
  void* handle() { return sub_.handle(); }
  void finish() {
    set(pub_, ZMQ_LINGER, 2000);
    sub_.close(), pub_.close(), context_.close();
  }

 private:
  static void set(zmq::socket_t& socket, int option, int value) { zmq_setsockopt(socket.handle(), option, &value, sizeof value); }
  zmq::context_t context_;
  zmq::socket_t sub_, pub_;
  Keys keys_;
};

// The threads of the handlers, and what they report to the thread of the sockets.
class Pool {
 public:
  struct Report { enum { Ended, GivenBack, Progress } kind; Key key; Outcome outcome; json done, total, note; };
  Pool(const std::vector<Worker::Handler>& handlers, int threads, std::string version)
      : handlers_(handlers), version_(std::move(version)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (int i = 0; i < threads; i++) std::thread([this] { work(); }).detach();
  }
  int descriptor() const { return wake_; }
  void start(const Action& action) {
    auto run = std::make_shared<Run>();
    run->key = action.key, run->offer = action.offer, run->step = action.step, run->lease_until = action.lease_until;
    runs_[action.key] = run;
    std::lock_guard lock(mutex_);
    queue_.push_back(run);
    ready_.notify_one();
  }
  void stop(Key key, const std::string& reason) {
    auto found = runs_.find(key);
    if (found == runs_.end()) return;
    std::lock_guard lock(found->second->mutex);
    if (reason == "lease_lost") found->second->lease_lost = true;
    else found->second->reason = reason;
    found->second->changed.notify_all();
  }
  std::vector<Report> reports() {
    uint64_t count;
    while (read(wake_, &count, sizeof count) > 0) {}
    std::lock_guard lock(mutex_);
    for (auto& report : reports_) if (report.kind != Report::Progress) runs_.erase(report.key);
    return std::exchange(reports_, {});
  }

 private:
  void report(Report one) {
    std::lock_guard lock(mutex_);
    reports_.push_back(std::move(one));
    uint64_t count = 1;
    (void)!write(wake_, &count, sizeof count);
  }
  void work() {
    for (;;) {
      std::shared_ptr<Run> run;
      {
        std::unique_lock lock(mutex_);
        ready_.wait(lock, [&] { return !queue_.empty(); });
        run = queue_.front();
        queue_.pop_front();
      }
      if (boot_clock_ms() >= run->lease_until) {
        report({Report::GivenBack, run->key, {}, {}, {}, {}});
        continue;
      }
      Context context(*run, [&](json done, json total, json note) {
        report({Report::Progress, run->key, {}, std::move(done), std::move(total), std::move(note)});
      });
      Outcome outcome = outcome_of(*run, handlers_[run->offer], context, version_);
      report({Report::Ended, run->key, std::move(outcome), {}, {}, {}});
    }
  }
  const std::vector<Worker::Handler>& handlers_;
  std::string version_;
  int wake_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::shared_ptr<Run>> queue_;
  std::vector<Report> reports_;
  std::map<Key, std::shared_ptr<Run>> runs_;  // of the thread of the sockets
};
}  // namespace

double boot_clock_ms() {
  timespec time{};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return double(time.tv_sec) * 1000 + double(time.tv_nsec) / 1e6;
}

std::string Context::stop_reason() {
  std::lock_guard lock(run_.mutex);
  return run_.reason;
}

std::string Context::wait(double ms) {
  std::unique_lock lock(run_.mutex);
  run_.changed.wait_for(lock, std::chrono::microseconds(int64_t(ms * 1000)), [&] { return !run_.reason.empty(); });
  return run_.reason;
}

Worker& Worker::handle(const std::string& name, Handler handler, int concurrency, double timeout_ms) {
  offers_.push_back({name, concurrency, timeout_ms, false});
  handlers_.push_back(std::move(handler));
  return *this;
}

int Worker::run(const std::string& default_name) {
  Keys keys;
  Config config;
  try {
    keys = keys_of_environment();
    config = config_of_environment(default_name, offers_, !keys.open.empty());
  } catch (const BadSetting& error) {
    say(error.what());
    return 2;
  }
  sigset_t signals;
  sigemptyset(&signals);
  for (int one : {SIGTERM, SIGINT, SIGTSTP}) sigaddset(&signals, one);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts
  int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);

  Sockets sockets(config.worker, keys);
  for (auto& link : config.links) sockets.connect(link, "");
  Pool pool(handlers_, config.slots, config.handler_version);
  Session session(config);
  double draining_since = kNever;
  bool expelled = false, over = false;
  int interrupts = 0;
  say(config.worker + ", process " + std::to_string(config.pid) + ", " + std::to_string(config.slots) + " slots, " + std::to_string(offers_.size()) + " handlers");
  auto perform = [&] {
    for (auto& action : session.actions()) switch (action.kind) {
        case Action::Send: sockets.send(action.text); break;
        case Action::Run: pool.start(action); break;
        case Action::Stop: pool.stop(action.key, action.text); break;
        case Action::Connect: say("connects to " + action.link.steps), sockets.connect(action.link, action.server_key); break;
        case Action::Disconnect: say("disconnects from " + action.link.steps), sockets.disconnect(action.link); break;
        case Action::Rebuild:
          say("no broker answers at " + action.link.steps + ": connects again");
          sockets.disconnect(action.link), sockets.connect(action.link, action.server_key);
          break;
        case Action::Quit: over = true; break;
        case Action::Log: say(action.text); break;
      }
  };
  session.at(boot_clock_ms());
  session.start();
  perform();
  while (!over) {
    double now = boot_clock_ms(), wake = session.wake_at();
    if (session.draining()) {
      draining_since = std::min(draining_since, now);
      wake = std::min(wake, draining_since + (expelled ? kDrainEndMs : kDrainMs));
    }
    zmq_pollitem_t items[] = {{sockets.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, pool.descriptor(), ZMQ_POLLIN, 0}, {nullptr, signal_fd, ZMQ_POLLIN, 0}};
    zmq_poll(items, 3, long(std::clamp(std::ceil(wake - now), 0.0, 1000.0)));
    session.at(boot_clock_ms());
    for (signalfd_siginfo info; read(signal_fd, &info, sizeof info) == ssize_t(sizeof info);) {
      if (info.ssi_signo == SIGINT && ++interrupts > 1) _exit(130);
      if (info.ssi_signo == SIGTSTP) session.quiet();
      else session.drain();
    }
    for (auto& report : pool.reports()) {
      if (report.kind == Pool::Report::Ended) session.ended(report.key, std::move(report.outcome));
      else if (report.kind == Pool::Report::GivenBack) session.give_back(report.key);
      else session.progress(report.key, report.done, report.total, report.note);
    }
    perform();
    std::string frame;
    for (int i = 0; i < 1000 && !over && sockets.receive(frame); i++) {
      session.at(boot_clock_ms());
      session.receive(frame);
      perform();
    }
    now = boot_clock_ms();
    if (now - draining_since >= kDrainMs && !expelled) {
      say("the runs are asked to stop");
      expelled = true;
      session.at(now), session.expel(), perform();
    }
    if (now - draining_since >= kDrainEndMs) {
      say("ends although steps still run");
      over = true;
    }
  }
  sockets.finish();
  fflush(stderr);
  _exit(0);  // threads of handlers may still run
}
}  // namespace stepwire
