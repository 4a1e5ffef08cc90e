#include "server/tokenizer_api.h"

#include "text/unicode.h"

namespace moesaic {
namespace {

bool has_tokenizer(const ApiState& state, ApiError& error) {
  if (state.tokenizer == nullptr)
    report(error, 400, "unsupported_endpoint", "this model has no tokenizer.json, which text needs");
  return state.tokenizer != nullptr;
}

ChatPrompt read_chat_prompt(const ApiState& state, const Fields& body) {
  ChatRequest chat;
  read_prompt_fields(body, state.facts(), chat);
  return body.error ? ChatPrompt() : write_prompt(chat, state.writer, body.error);
}

std::vector<int32_t> read_tokens(const ApiState& state, const Fields& body) {
  if (body.find("messages") != nullptr) return read_chat_prompt(state, body).tokens;
  const bool llama = body.find("prompt") == nullptr && body.find("content") != nullptr;
  const auto text = body.string(llama ? "content" : "prompt");
  if (!text)
    report(body.error, 400, "missing_required_parameter", "prompt is missing; expected prompt, content or messages",
           "prompt");
  const bool special = llama ? body.boolean("add_special", false) : body.boolean("add_special_tokens", true);
  const bool parse = body.boolean("parse_special", true);
  if (body.error) return {};
  return state.tokenizer->encode(*text, {.add_special_tokens = special, .parse_special = parse});
}

// A string, or bytes where they are only a part of a character.
Json piece_json(std::string_view bytes) {
  const std::string text = replace_invalid_utf8(bytes);
  if (text == bytes) return Json(text);
  JsonArray numbers;
  for (const char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  return numbers;
}

JsonArray pieces_json(const std::vector<int32_t>& tokens, const Tokenizer& tokenizer) {
  JsonArray out;
  for (const int32_t id : tokens) {
    JsonObject piece;
    piece["id"] = id;
    piece["piece"] = piece_json(tokenizer.token_bytes(id).value_or(""));
    out.push_back(std::move(piece));
  }
  return out;
}

JsonArray names_json(const std::vector<int32_t>& tokens, const Tokenizer& tokenizer) {
  JsonArray out;
  for (const int32_t id : tokens) out.push_back(Json(std::string(tokenizer.id_to_token(id).value_or(""))));
  return out;
}

}  // namespace

void answer_tokenize(const ApiState& state, const ExchangePtr& exchange, ApiError& error) {
  const auto body = parse_body(exchange->request(), error);
  if (!body || !has_tokenizer(state, error)) return;
  const Fields fields{*body, "", error};
  read_model(fields, state.options);
  const bool names = fields.boolean("return_token_strs", false), pieces = fields.boolean("with_pieces", false);
  if (error) return;
  const std::vector<int32_t> tokens = read_tokens(state, fields);
  if (error) return;
  JsonObject out;
  out["tokens"] = pieces ? pieces_json(tokens, *state.tokenizer) : ids_json(tokens);
  out["count"] = tokens.size();
  out["max_model_len"] = state.engine.info().max_model_len;
  out["token_strs"] = names ? Json(names_json(tokens, *state.tokenizer)) : Json();
  exchange->respond({.body = compact(out)});
}

void answer_detokenize(const ApiState& state, const ExchangePtr& exchange, ApiError& error) {
  const auto body = parse_body(exchange->request(), error);
  if (!body || !has_tokenizer(state, error)) return;
  const Fields fields{*body, "", error};
  read_model(fields, state.options);
  const JsonArray* ids = fields.array_at("tokens");
  if (ids == nullptr)
    report(error, 400, "missing_required_parameter", "tokens is missing; expected an array of token ids", "tokens");
  if (error) return;
  std::vector<int32_t> tokens;
  if (!ids->empty()) tokens = read_token_ids(*ids, state.engine.info().vocab, "tokens", error);
  if (error) return;
  const std::string text = state.tokenizer->decode(tokens, false);
  JsonObject out;
  for (const char* key : {"prompt", "content", "text"}) out[key] = text;
  exchange->respond({.body = compact(out)});
}

void answer_template(const ApiState& state, const ExchangePtr& exchange, ApiError& error) {
  const auto body = parse_body(exchange->request(), error);
  if (!body || !has_tokenizer(state, error)) return;
  const Fields fields{*body, "", error};
  read_model(fields, state.options);
  if (error) return;
  const ChatPrompt prompt = read_chat_prompt(state, fields);
  if (error) return;
  std::string text;
  for (const RenderedSegment& segment : prompt.segments) text += segment.text;
  JsonObject out;
  out["prompt"] = text;
  exchange->respond({.body = compact(out)});
}

}  // namespace moesaic
