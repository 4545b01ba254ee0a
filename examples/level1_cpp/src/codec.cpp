#include "codec.hpp"

#include <cmath>
#include <vector>

namespace stepwire {
namespace {
constexpr int64_t kIntegerMax = 9007199254740991;
constexpr size_t kDepthMax = 32, kContainersMax = 250000, kItemsMax = 1000;

// Builds a document and stops at the first broken rule.
struct Reader : nlohmann::json_sax<json> {
  json root;
  std::vector<json*> open;
  json* slot = nullptr;  // the member whose key was read last
  size_t containers = 0;
  std::string code, text;

  bool fail(const char* code_, const std::string& text_) {
    code = code_, text = text_;
    return false;
  }
  json* put(json value) {
    if (open.empty()) return &(root = std::move(value));
    if (open.back()->is_array()) {
      open.back()->push_back(std::move(value));
      return &open.back()->back();
    }
    return &(*slot = std::move(value));
  }
  bool nul_free(const std::string& value) {
    return value.find('\0') == std::string::npos || fail("nul_character", "a string holds U+0000");
  }
  bool begin(json value) {
    if (open.size() >= kDepthMax) return fail("too_deep", "the nesting is deeper than 32");
    if (++containers > kContainersMax) return fail("too_large", "more than 250,000 arrays and objects");
    open.push_back(put(std::move(value)));
    return true;
  }
  bool end() { return open.pop_back(), true; }
  bool null() override { return put(nullptr), true; }
  bool boolean(bool value) override { return put(value), true; }
  bool number_integer(int64_t value) override {
    if (value < -kIntegerMax || value > kIntegerMax) return fail("integer_out_of_range", "an integer is outside the range");
    return put(value), true;
  }
  bool number_unsigned(uint64_t value) override {
    if (value > uint64_t(kIntegerMax)) return fail("integer_out_of_range", "an integer is outside the range");
    return put(value), true;
  }
  bool number_float(double value, const std::string& written) override {
    if (written.find_first_of(".eE") == std::string::npos) return fail("integer_out_of_range", "an integer is outside the range");
    if (!std::isfinite(value)) return fail("number_out_of_range", "a number is too large");
    return put(value), true;
  }
  bool string(std::string& value) override { return nul_free(value) && (put(value), true); }
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return begin(json::object()); }
  bool key(std::string& name) override {
    if (!nul_free(name)) return false;
    if (open.back()->contains(name)) return fail("duplicate_key", "an object names the key " + json(name).dump() + " twice");
    slot = &(*open.back())[name];
    return true;
  }
  bool end_object() override { return end(); }
  bool start_array(size_t) override { return begin(json::array()); }
  bool end_array() override { return end(); }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    return fail(error.id == 406 ? "number_out_of_range" : "not_json", error.what());
  }
};

[[noreturn]] void bad(const std::string& name) { throw Refused("bad_field", "the member `" + name + "` is missing or wrong"); }

bool integer(const json& value, int64_t least) {
  return value.is_number_integer() && (value.is_number_unsigned() || value.get<int64_t>() >= least) &&
         (!value.is_number_unsigned() || int64_t(value.get<uint64_t>()) >= least);
}
bool digits(std::string_view text, size_t most) {
  return !text.empty() && text.size() <= most && text.find_first_not_of("0123456789") == text.npos;
}
bool version_form(const json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  size_t dot = text.find('.');
  return dot != text.npos && digits(std::string_view(text).substr(0, dot), 9) && digits(std::string_view(text).substr(dot + 1), 9);
}
bool z85(const std::string& key) {
  static const std::string rest = ".-:+=^!/*?&<>()[]{}@%$#";
  if (key.size() != 40) return false;
  for (char c : key)
    if (!isalnum(static_cast<unsigned char>(c)) && rest.find(c) == rest.npos) return false;
  return true;
}
size_t points(const std::string& text) {
  size_t count = 0;
  for (char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

// Access to members; every mismatch is `bad_field`.
struct Members {
  const json& object;
  const json* find(const char* name) const {
    auto at = object.find(name);
    return at == object.end() ? nullptr : &*at;
  }
  const json& need(const char* name) const {
    if (auto* value = find(name)) return *value;
    bad(name);
  }
  void number(const char* name, int64_t least) const { if (!integer(need(name), least)) bad(name); }
  void text(const char* name) const { if (!need(name).is_string()) bad(name); }
  void flag(const char* name) const { if (auto* value = find(name); value && !value->is_boolean()) bad(name); }
  void text_or_null(const char* name, size_t most = SIZE_MAX) const {
    auto* value = find(name);
    if (!value || value->is_null()) return;
    if (!value->is_string() || points(value->get_ref<const std::string&>()) > most) bad(name);
  }
  void texts(const char* name, bool always) const {
    auto* value = find(name);
    if (!value && !always) return;
    if (!value || !value->is_array()) bad(name);
    for (auto& one : *value) if (!one.is_string()) bad(name);
  }
  void session() const {
    text("session");
    const auto& value = object["session"].get_ref<const std::string&>();
    size_t dot = value.find('.');
    if (dot == value.npos || !digits(std::string_view(value).substr(0, dot), 16) || !digits(std::string_view(value).substr(dot + 1), 16)) bad("session");
  }
  void items() const {
    auto& value = need("items");
    if (!value.is_array() || value.size() > kItemsMax) bad("items");
    for (auto& item : value)
      if (!item.is_array() || item.size() != 2 || !integer(item[0], 1) || !integer(item[1], 1)) bad("items");
  }
  void one_of(const char* name, std::initializer_list<const char*> values) const {
    text(name);
    for (auto* value : values) if (object[name] == value) return;
    bad(name);
  }
  void brokers(bool nullable) const {
    auto* value = find("brokers");
    if (!value || (nullable && value->is_null())) return;
    if (!value->is_array()) bad("brokers");
    for (auto& entry : *value) {
      if (!entry.is_object()) bad("brokers");
      Members members{entry};
      members.text("broker"), members.text("steps"), members.text("results");
      members.text_or_null("server_key");
      if (auto* key = members.find("server_key"); key && key->is_string() && !z85(*key)) bad("server_key");
    }
  }
};

void check_step(const json& step) {
  if (!step.is_object()) bad("steps");
  Members m{step};
  m.number("step_id", 1), m.number("task_id", 1), m.number("delivery", 1);
  m.text("step_name"), m.text("handler_class");
  if (m.find("delivery_mode")) m.one_of("delivery_mode", {"at_least_once", "at_most_once"});
  if (auto* previous = m.find("previous_results"); previous && !previous->is_object()) bad("previous_results");
  if (!m.need("metadata").is_object()) bad("metadata");
  Members meta{step["metadata"]};
  meta.number("attempt", 0), meta.number("retry_limit", 0), meta.number("timeout_ms", 0), meta.text("idempotency_key");
  meta.text_or_null("traceparent"), meta.text_or_null("tracestate", 512), meta.flag("shadow");
  if (auto* deadline = meta.find("deadline_ms"); deadline && !deadline->is_null() && !integer(*deadline, 0)) bad("deadline_ms");
}

void check_steps(const Members& m) {
  m.session(), m.text("batch_id");
  size_t length = points(m.object["batch_id"]);
  if (length < 1 || length > 128) bad("batch_id");
  if (!version_form(m.need("protocol_version"))) bad("protocol_version");
  if (m.object["protocol_version"].get_ref<const std::string&>().rfind("2.", 0) != 0)
    throw Refused("unknown_version", "the steps are of another major version");
  if (!m.need("steps").is_array()) bad("steps");
  for (auto& step : m.object["steps"]) check_step(step);
}
}  // namespace

json parse_strict(std::string_view text) {
  if (text.substr(0, 3) == "\xEF\xBB\xBF") throw Refused("not_json", "the text begins with a byte order mark");
  Reader reader;
  if (!json::sax_parse(text.begin(), text.end(), &reader)) throw Refused(reader.code.empty() ? "not_json" : reader.code, reader.text);
  if (!reader.root.is_object()) throw Refused("not_an_object", "the JSON is not an object");
  return std::move(reader.root);
}

std::optional<json> decode(std::string_view text) {
  json message = parse_strict(text);
  Members m{message};
  m.text("type");
  const std::string type = message["type"];
  static const char* known[] = {"here", "welcome", "heartbeat_ack", "steps", "go", "cancel", "ack", "adopt", "reset", "refused"};
  if (std::none_of(std::begin(known), std::end(known), [&](auto* one) { return type == one; })) return std::nullopt;
  if (!m.find("v")) throw Refused("missing_version", "the message has no version");
  if (!version_form(message["v"]) || message["v"].get_ref<const std::string&>().rfind("2.", 0) != 0)
    throw Refused("unknown_version", "the message has a version that this worker does not support");
  m.text("broker"), m.number("epoch", 0);
  const auto& broker = message["broker"].get_ref<const std::string&>();
  if (broker.empty() || broker.size() > 32 || broker.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") != broker.npos) bad("broker");
  if (type == "here") m.text("deployment"), m.texts("versions", true);
  if (type == "welcome") {
    m.session(), m.text("deployment"), m.number("n", 0), m.number("lease_ms", 1), m.number("heartbeat_ms", 0);
    m.number("max_message_bytes", 1), m.brokers(false);
  }
  if (type == "heartbeat_ack") m.session(), m.number("n", 0), m.flag("quiet"), m.flag("quit"), m.brokers(true);
  if (type == "steps") check_steps(m);
  if (type == "go" || type == "cancel" || type == "adopt") m.session(), m.items();
  if (type == "cancel") m.one_of("reason", {"not_granted", "timeout", "task_cancelled", "superseded"});
  if (type == "ack") {
    if (!m.need("rids").is_array()) bad("rids");
    for (auto& rid : message["rids"]) if (!integer(rid, 1)) bad("rids");
  }
  if (type == "reset") {
    m.number("next", 0), m.texts("versions", false);
    m.one_of("code", {"unknown_session", "expired", "version", "unauthorized", "shutdown"});
  }
  if (type == "refused") {
    m.text("code"), m.text("message"), m.text_or_null("refused");
    if (auto* rid = m.find("rid"); rid && !rid->is_null() && !integer(*rid, INT64_MIN)) bad("rid");
  }
  return message;
}

std::string problem_of(const json& value, int level) {
  auto text_problem = [](const std::string& text) -> std::string {
    if (text.find('\0') != text.npos) return "a string holds U+0000";
    try {
      json(text).dump();
    } catch (const json::exception&) {
      return "a string is not UTF-8";
    }
    return "";
  };
  switch (value.type()) {
    case json::value_t::string: return text_problem(value.get_ref<const std::string&>());
    case json::value_t::number_float: return std::isfinite(value.get<double>()) ? "" : "NaN and Infinity are not JSON";
    case json::value_t::number_integer:
      return std::abs(value.get<int64_t>()) <= kIntegerMax ? "" : "an integer is outside the range; send a string";
    case json::value_t::number_unsigned:
      return value.get<uint64_t>() <= uint64_t(kIntegerMax) ? "" : "an integer is outside the range; send a string";
    case json::value_t::object:
    case json::value_t::array: {
      if (level > int(kDepthMax)) return "the nesting is deeper than 32";
      for (auto& [key, one] : value.items()) {
        std::string problem = value.is_object() ? text_problem(key) : "";
        if (problem.empty()) problem = problem_of(one, level + 1);
        if (!problem.empty()) return problem;
      }
      return "";
    }
    case json::value_t::binary:
    case json::value_t::discarded: return "a value is no JSON";
    default: return "";
  }
}

std::string clean(const std::string& text) {
  std::string without;
  for (char c : text) if (c) without.push_back(c);
  return json::parse(json(without).dump(-1, ' ', false, json::error_handler_t::ignore)).get<std::string>();
}

std::string first_points(const std::string& text, size_t count) {
  size_t at = 0;
  for (; at < text.size(); at++)
    if ((text[at] & 0xC0) != 0x80 && count-- == 0) break;
  return text.substr(0, at);
}

namespace {
bool segment_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = pattern.npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') star = p++, mark = t;
    else if (p < pattern.size() && pattern[p] == text[t]) p++, t++;
    else if (star != pattern.npos) p = star + 1, t = ++mark;
    else return false;
  }
  while (p < pattern.size() && pattern[p] == '*') p++;
  return p == pattern.size();
}
std::vector<std::string_view> segments(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t at; (at = text.find("::")) != text.npos; text.remove_prefix(at + 2)) parts.push_back(text.substr(0, at));
  parts.push_back(text);
  return parts;
}
}  // namespace

bool matches(std::string_view pattern, std::string_view path) {
  auto want = segments(pattern), have = segments(path);
  size_t p = 0, t = 0, star = SIZE_MAX, mark = 0;
  while (t < have.size()) {
    if (p < want.size() && want[p] == "**") star = p++, mark = t;
    else if (p < want.size() && segment_matches(want[p], have[t])) p++, t++;
    else if (star != SIZE_MAX) p = star + 1, t = ++mark;
    else return false;
  }
  while (p < want.size() && want[p] == "**") p++;
  return p == want.size();
}

int64_t batch_number(const std::string& batch_id) {
  size_t at = batch_id.rfind('_');
  if (at == batch_id.npos || !digits(std::string_view(batch_id).substr(at + 1), 15)) return 0;
  return std::stoll(batch_id.substr(at + 1));
}
}  // namespace stepwire
