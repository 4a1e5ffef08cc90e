#include "engine/text_files.h"

#include "base/log.h"

namespace moesaic {
namespace {

constexpr const char* kNoTokenizer = ": there is no tokenizer.json, which text needs";

Status check_messages(const Json& messages) {
  const auto bad = [](std::string what) { return Status(StatusCode::invalid_argument, std::move(what), "messages"); };
  if (!messages.is_array() || messages.get_array().empty())
    return bad("messages is not a list of one or more messages such as {\"role\": \"user\", \"content\": \"Hello\"}");
  for (size_t i = 0; i < messages.get_array().size(); ++i) {
    const JsonObject* message = messages.get_array()[i].if_object();
    const Json* role = message != nullptr ? json_find(*message, "role") : nullptr;
    if (role == nullptr || !role->is_string())
      return bad(
          fmt::format("messages[{}] is not an object with a \"role\"; expected for example {{\"role\": \"user\", "
                      "\"content\": \"Hello\"}}",
                      i));
  }
  return {};
}

// Of config.json; empty where there is none.
std::string model_type(const std::filesystem::path& directory) {
  const std::string path = (directory / "config.json").string();
  if (!std::filesystem::exists(path)) return "";
  const Json config = read_json_file(path, {.python_constants = true});
  return json_string(json_object(config, path), "model_type", path, "");
}

}  // namespace

TextFiles TextFiles::load(const std::filesystem::path& directory) {
  TextFiles files;
  files.directory = directory.string();
  if (std::filesystem::exists(directory / "tokenizer.json"))
    files.tokenizer = load_tokenizer(directory / "tokenizer.json");
  if (files.tokenizer != nullptr) files.chat_format = detect_chat_format(*files.tokenizer, model_type(directory));
  try {
    files.chat_template = load_chat_template(directory.string());
  } catch (const Error& error) {
    files.template_error = error.what();
    log_info("chat is not available: {}", error.what());
  }
  return files;
}

bool TextFiles::has_chat() const {
  return tokenizer != nullptr && (chat_template || has_encoder(chat_format));
}

const Tokenizer& TextFiles::need_tokenizer() const {
  if (tokenizer == nullptr) throw Error(StatusCode::not_found, directory + kNoTokenizer);
  return *tokenizer;
}

Result<std::vector<int32_t>> TextFiles::encode_chat(const ChatInput& input) const {
  if (tokenizer == nullptr) return Status(StatusCode::invalid_argument, directory + kNoTokenizer);
  if (!has_chat())
    return Status(StatusCode::invalid_argument,
                  template_error.empty() ? directory + ": there is no chat template; send a plain prompt instead"
                                         : template_error);
  if (Status status = check_messages(input.messages); !status.ok()) return status;
  const auto rendered = chat_template ? chat_template->render(input) : *encode_natively(chat_format, input);
  if (!rendered.ok()) return rendered.status();
  std::vector<TextSegment> segments;
  for (const RenderedSegment& segment : *rendered) segments.push_back({segment.text, segment.literal});
  return tokenizer->encode_segments(segments);
}

}  // namespace moesaic
