#include "server/chat_prompt.h"

#include <fmt/format.h>

#include "base/error.h"

namespace moesaic {
namespace {

ChatInput chat_input(const ChatRequest& request) {
  ChatInput input;
  input.messages = request.conversation.messages;
  // A model that may not call is not offered the tools.
  if (request.tools.choice != ToolFields::Choice::none) input.tools = request.tools.tools;
  input.add_generation_prompt = request.add_generation_prompt;
  input.kwargs = request.template_kwargs;
  return input;
}

std::optional<ChatTemplate> parse_template(const std::string& source, ApiError& error) {
  try {
    return ChatTemplate::parse(source, "chat_template");
  } catch (const Error& broken) {
    report(error, 400, "invalid_value", broken.what(), "chat_template");
    return std::nullopt;
  }
}

Result<std::vector<RenderedSegment>> render(const ChatInput& input, const PromptWriter& writer) {
  if (writer.server_template) return writer.server_template->render(input);
  if (auto native = encode_natively(writer.format, input)) return std::move(*native);
  if (writer.files.chat_template) return writer.files.chat_template->render(input);
  return Status(StatusCode::invalid_argument,
                writer.files.template_error.empty()
                    ? "this model has no chat template; send a prompt to /v1/completions instead"
                    : "this model's chat template cannot be used: " + writer.files.template_error,
                "messages");
}

Result<std::vector<RenderedSegment>> render(const ChatRequest& request, const ChatInput& input,
                                            const PromptWriter& writer, ApiError& error) {
  if (!request.chat_template) return render(input, writer);
  auto own = parse_template(*request.chat_template, error);
  if (!own) return std::vector<RenderedSegment>();
  if (const auto& known = writer.files.chat_template) own->set_special_tokens_of(*known);
  return own->render(input);
}

bool fill_absent_content(JsonArray& messages) {
  bool filled = false;
  for (Json& message : messages)
    if (Json& content = message.get_object()["content"]; content.is_null()) content = "", filled = true;
  return filled;
}

// An assistant's message of calls alone has no content. Some templates ask whether it is none, others want a string.
Result<std::vector<RenderedSegment>> render(const ChatRequest& request, const PromptWriter& writer, ApiError& error) {
  ChatInput input = chat_input(request);
  auto rendered = render(request, input, writer, error);
  if (rendered.ok() || error || !fill_absent_content(input.messages.get_array())) return rendered;
  auto again = render(request, input, writer, error);
  return again.ok() ? std::move(again) : std::move(rendered);
}

std::string last_text(const JsonArray& messages) {
  const Json& content = messages.back().at("content");
  std::string text = content.is_string() ? std::string(content.get_string()) : "";
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n' || text.back() == '\t')) text.pop_back();
  return text;
}

void cut_to_continue(const ChatRequest& request, std::vector<RenderedSegment>& segments, ApiError& error) {
  const std::string text = last_text(request.conversation.messages);
  if (!text.empty() && cut_after(segments, text)) return;
  report(error, 400, "invalid_value",
         text.empty() ? "the last message has no text to continue"
                      : "the chat template does not show the last message, which is to be continued",
         "continue_final_message");
}

}  // namespace

bool cut_after(std::vector<RenderedSegment>& segments, std::string_view text) {
  for (size_t i = segments.size(); i-- > 0;) {
    if (!segments[i].literal) continue;
    const size_t at = segments[i].text.rfind(text);
    if (at == std::string::npos) continue;
    segments[i].text.resize(at + text.size());
    segments.resize(i + 1);
    return true;
  }
  return false;
}

ChatPrompt write_prompt(const ChatRequest& request, const PromptWriter& writer, ApiError& error) {
  ChatPrompt out;
  const Tokenizer& tokenizer = writer.files.need_tokenizer();
  auto rendered = render(request, writer, error);
  if (!rendered.ok()) report(error, 400, "invalid_value", rendered.status().message(), "messages");
  if (error) return out;
  out.segments = std::move(*rendered);
  if (request.continue_final_message) cut_to_continue(request, out.segments, error);
  std::vector<TextSegment> segments;
  for (const RenderedSegment& segment : out.segments) segments.push_back({segment.text, segment.literal});
  out.tokens = tokenizer.encode_segments(segments, request.add_special_tokens);
  return out;
}

}  // namespace moesaic
