// JSON as the protocol allows it (SPEC 3), and the messages of a broker (SPEC 6).
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace stepwire {
using json = nlohmann::json;

struct Refused : std::runtime_error {
  std::string code;
  Refused(std::string code_, const std::string& text) : std::runtime_error(text), code(std::move(code_)) {}
};

// One JSON object that keeps every rule of SPEC 3. Throws Refused.
json parse_strict(std::string_view text);
// A checked message of a broker; nothing for a type that this worker does not know. Throws Refused.
std::optional<json> decode(std::string_view text);
// Why this value cannot be sent at this level of nesting; empty if it can.
std::string problem_of(const json& value, int level);
// A text without U+0000 and without bytes that are not UTF-8.
std::string clean(const std::string& text);
// The pattern rules of SPEC 4.
bool matches(std::string_view pattern, std::string_view path);
// The number of a batch `batch_<nonce>_<n>`, 0 if it has none.
int64_t batch_number(const std::string& batch_id);
// The first `count` code points.
std::string first_points(const std::string& text, size_t count);

// Writes a message with the members in the order of the calls.
class Writer {
 public:
  Writer(const std::string& topic, const char* type, const std::string& worker) {
    text_ = topic + "{\"type\":\"" + type + "\",\"v\":\"2.0\",\"worker\":\"" + worker + "\"";
  }
  Writer& add(const char* name, const json& value) { return raw(name, value.dump()); }
  Writer& raw(const char* name, const std::string& value) {
    text_.append(",\"").append(name).append("\":").append(value);
    return *this;
  }
  std::string end() { return text_ + "}"; }

 private:
  std::string text_;
};
}  // namespace stepwire
