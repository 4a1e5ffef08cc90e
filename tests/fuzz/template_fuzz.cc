// Any text is either refused as a template, fails while it renders, or gives valid segments, within the limits.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/chat_template.h"

namespace moesaic {
namespace {

ChatInput small_input() {
  ChatInput input;
  input.messages = parse_json(R"([{"role": "system", "content": "s"}, {"role": "user", "content": "u<|x|>\u00e9"},
    {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": [1, 2.5, null]}}}]},
    {"role": "tool", "content": [{"type": "text", "text": "t"}]}])",
                              "messages");
  input.tools = parse_json(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}])",
      "tools");
  input.bos_token = "<s>";
  input.kwargs = {{"x", 3}, {"s", "a bA\n"}, {"l", JsonArray{1, "b", nullptr}}};
  input.now = 0;
  return input;
}

void check(std::string_view source) {
  static const ChatInput input = small_input();
  jinja::Limits limits;
  limits.steps = 20'000;
  limits.text = 100'000;
  limits.created = 1'000'000;
  limits.items = 10'000;
  static_cast<void>(render_template(source, input.kwargs, 0, limits));
  try {
    const auto segments = ChatTemplate::parse(source, "fuzz").render(input, limits);
    if (!segments.ok()) return;
    for (size_t i = 0; i < segments->size(); ++i) {
      CHECK(!(*segments)[i].text.empty());
      CHECK(i == 0 || (*segments)[i].literal != (*segments)[i - 1].literal);
    }
  } catch (const Error& error) {
    CHECK(error.code() == StatusCode::data_loss);
  }
}

}  // namespace
}  // namespace moesaic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moesaic::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
