// Chat templates: from messages to the text of a prompt, with what came from the user kept apart.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "moesaic/status.h"
#include "text/jinja_value.h"

namespace moesaic {

// A stretch of a rendered prompt. Literal text came from messages, tools or other input: special tokens must not be
// recognised in it. Everything else is one token stream: neighbouring segments are still encoded together, so that
// the split leaves no trace in the tokens of harmless text.
struct RenderedSegment {
  std::string text;
  bool literal = false;

  bool operator==(const RenderedSegment&) const = default;
};

struct ChatInput {
  Json messages = JsonArray();  // array of objects, as in the chat completions API
  Json tools;                   // array of objects, or null
  bool add_generation_prompt = true;
  std::optional<std::string> bos_token, eos_token;  // instead of those of the checkpoint
  JsonObject kwargs;                                // further variables; their strings are literal
  std::optional<std::time_t> now;                   // what strftime_now prints, in local time; the clock by default
};

// A parsed template. Immutable; render may be called from several threads at once.
class ChatTemplate {
 public:
  // Throws Error(data_loss) naming `where`, the line and what is wrong or unsupported.
  static ChatTemplate parse(std::string_view source, const std::string& where);

  // Segments in order; neighbours differ in `literal`, and none is empty. A template that calls raise_exception, or
  // fails while it runs, gives invalid_argument with its message.
  Result<std::vector<RenderedSegment>> render(const ChatInput& input, const jinja::Limits& limits = {}) const;

  // The tokens that bos_token and eos_token stand for; unset, they are undefined in the template.
  void set_special_tokens(std::optional<std::string> bos, std::optional<std::string> eos);
  // The same as another template's.
  void set_special_tokens_of(const ChatTemplate& other) { set_special_tokens(other.bos_token_, other.eos_token_); }

 private:
  struct Program;
  std::shared_ptr<const Program> program_;
  std::optional<std::string> bos_token_, eos_token_;
};

// The template of a checkpoint: chat_template.jinja in `model_dir`, else chat_template of tokenizer_config.json (a
// string, or a list of {name, template}, of which `name` is taken), with the special tokens of that file. Empty when
// there is none. Throws Error(data_loss) for files that cannot be read.
std::optional<ChatTemplate> load_chat_template(const std::string& model_dir, std::string_view name = "default");

// Renders any template with the members of `variables` (an object) defined, as one text. For tests and tools.
Result<std::string> render_template(std::string_view source, const Json& variables, std::optional<std::time_t> now = {},
                                    const jinja::Limits& limits = {});

}  // namespace moesaic
