// The session behind stdin and stdout (protocol/conformance/DRIVER.md).
#include <cmath>
#include <iostream>
#include <memory>
#include <set>

#include "session.hpp"

using namespace stepwire;

namespace {
std::string from_base64(const std::string& text) {
  std::string bytes;
  unsigned value = 0, bits = 0;
  for (char c : text) {
    static const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t at = digits.find(c);
    if (at == digits.npos) break;
    value = value << 6 | unsigned(at), bits += 6;
    if (bits >= 8) bytes.push_back(char(value >> (bits -= 8) & 0xFF));
  }
  return bytes;
}

Config config_of(const json& op) {
  Config c;
  c.worker = op["worker"];
  for (auto& one : op["offers"]) {
    auto number = [&](const char* name) { return one.contains(name) && one[name].is_number() ? one[name].get<double>() : 0.0; };
    c.offers.push_back({one["pattern"], int(number("concurrency")), number("timeout_ms"), one.contains("shadow_safe") && one["shadow_safe"] == true});
  }
  c.slots = op["slots"];
  if (op.contains("prefetch") && op["prefetch"].is_number()) c.prefetch = op["prefetch"];
  c.heartbeat_ms = op.value("heartbeat_ms", 2000);
  c.labels = op.value("labels", json::object());
  for (auto& one : op.value("links", json::array({{{"steps", "ipc://steps"}, {"results", "ipc://results"}}}))) c.links.push_back({one["steps"], one["results"]});
  c.max_message_bytes = op.value("max_message_bytes", 4194304);
  c.accept_delay_ms = op.value("accept_delay_ms", 0.0);
  c.lang = op.value("lang", "cpp"), c.sdk = op.value("sdk", ""), c.host = op.value("host", "");
  c.handler_version = op.value("handler_version", "");
  c.pid = op.value("pid", 0), c.pid_started = op.value("pid_started", 0), c.proof = op.value("proof", false), c.curve = op.value("curve", false);
  return c;
}

struct Driver {
  std::unique_ptr<Session> session;
  std::set<Key> running;

  json apply(const json& op) {
    const std::string name = op["op"];
    if (name == "start") session = std::make_unique<Session>(config_of(op)), running.clear();
    if (!session) throw std::runtime_error("no session was started");
    session->at(op["now_ms"]);
    Key key{op.value("step_id", 0), op.value("delivery", 0)};
    bool runs = running.count(key);
    auto optional = [&](const char* member) { return op.value(member, json()); };
    if (name == "start") session->start();
    else if (name == "receive") session->receive(op.contains("frame") ? op["frame"].get<std::string>() : from_base64(op["frame_base64"]));
    else if (name == "complete" && runs) {
      running.erase(key);
      session->ended(key, {"completed", op["output"], nullptr, optional("metadata")});
    } else if (name == "fail" && runs) {
      running.erase(key);
      json error = {{"message", op["message"]}};
      for (auto* member : {"code", "category", "retryable", "retry_after_ms"})
        if (!optional(member).is_null()) error[member] = op[member];
      session->ended(key, {op.value("status", "failed"), nullptr, error, nullptr});
    } else if (name == "progress" && runs) session->progress(key, op["done"], optional("total"), optional("note"));
    else if (name == "quiet") session->quiet();
    else if (name == "full") session->full(op["is_full"]);
    else if (name == "drain") session->drain();
    else if (name == "expel") session->expel();

    json actions = json::array();
    for (auto& a : session->actions()) {
      json item = {{"step_id", a.key.first}, {"delivery", a.key.second}};
      json pair = {{"steps", a.link.steps}, {"results", a.link.results}};
      switch (a.kind) {
        case Action::Send: actions.push_back({{"action", "send"}, {"frame", a.text}}); break;
        case Action::Run: running.insert(a.key), item["action"] = "run", actions.push_back(item); break;
        case Action::Stop: item["action"] = "request_stop", item["reason"] = a.text, actions.push_back(item); break;
        case Action::Quit: actions.push_back({{"action", "quit"}}); break;
        case Action::Connect:
          pair["action"] = "connect", pair["server_key"] = a.server_key.empty() ? json() : json(a.server_key), actions.push_back(pair);
          break;
        case Action::Disconnect: pair["action"] = "disconnect", actions.push_back(pair); break;
        case Action::Rebuild: pair["action"] = "rebuild", actions.push_back(pair); break;
        case Action::Log: actions.push_back({{"action", "log"}, {"level", "info"}, {"event", clean(a.text)}}); break;
      }
    }
    double wake = session->wake_at();
    return {{"actions", actions}, {"wake_at_ms", std::isfinite(wake) ? json(wake) : json()}, {"holding", session->holding()}};
  }
};
}  // namespace

int main() {
  Driver driver;
  for (std::string line; std::getline(std::cin, line);) {
    json reply;
    try {
      reply = driver.apply(json::parse(line));
    } catch (const std::exception& error) {
      reply = {{"error", clean(error.what())}};
    }
    std::cout << reply.dump() << std::endl;
  }
}
