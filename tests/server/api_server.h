// An engine over the demo model with the API before it, and requests to it without a connection.
#pragma once

#include <gtest/gtest.h>

#include "server/api.h"
#include "server/fake_exchange.h"

namespace moesaic {

using Endpoint = void (Api::*)(std::shared_ptr<http::Exchange>);

struct ApiServer {
  explicit ApiServer(EngineOptions engine_options = {}, ApiOptions api_options = {}) {
    if (engine_options.model.empty()) engine_options.model = std::string(MOESAIC_SOURCE_DIR) + "/models/demo";
    engine_options.threads = 2;
    engine.emplace(Engine::open(engine_options));
    if (api_options.served_names.empty()) api_options.served_names = {"demo"};
    api.emplace(*engine, std::move(api_options), [this](const RequestRecord& record) {
      const std::lock_guard lock(mutex);
      records.push_back(record);
    });
  }

  std::shared_ptr<FakeExchange> start(Endpoint endpoint, const std::string& body, http::Headers headers = {},
                                      const std::string& path = "/") {
    auto exchange = std::make_shared<FakeExchange>(body, path, std::move(headers));
    ((*api).*endpoint)(exchange);
    return exchange;
  }
  std::shared_ptr<FakeExchange> call(Endpoint endpoint, const std::string& body, http::Headers headers = {},
                                     const std::string& path = "/") {
    auto exchange = start(endpoint, body, std::move(headers), path);
    EXPECT_TRUE(exchange->run_until_over()) << body;
    return exchange;
  }
  RequestRecord last_record() {
    const std::lock_guard lock(mutex);
    return records.back();
  }

  std::mutex mutex;
  std::vector<RequestRecord> records;
  std::optional<Engine> engine;
  std::optional<Api> api;
};

// The data of each frame but [DONE], in order.
inline std::vector<Json> frames_of(const std::string& body) {
  std::vector<Json> out;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    std::string_view frame = std::string_view(body).substr(at, end - at);
    at = end == std::string::npos ? body.size() : end + 2;
    if (frame.starts_with("event: ")) frame.remove_prefix(frame.find('\n') + 1);
    if (frame.starts_with("data: ") && frame != "data: [DONE]") out.push_back(parse_json(frame.substr(6), "frame"));
  }
  return out;
}

// What the deltas of a stream say for one choice.
struct Streamed {
  std::string text, reasoning, finish_reason;
  int roles = 0, finishes = 0;
};

inline Streamed streamed(const std::string& body, int64_t index = 0) {
  Streamed out;
  for (const Json& frame : frames_of(body)) {
    const JsonArray& choices = frame.at("choices").as_array();
    if (choices.empty() || choices[0].at("index") != index) continue;
    const JsonObject& choice = choices[0].as_object();
    EXPECT_EQ(out.finishes, 0) << "a frame after the end";
    if (const Json* text = choice.if_contains("text")) out.text += text->as_string();
    if (const Json* delta = choice.if_contains("delta")) {
      const JsonObject& fields = delta->as_object();
      out.roles += fields.contains("role");
      if (const Json* text = fields.if_contains("content")) out.text += text->as_string();
      if (const Json* text = fields.if_contains("reasoning_content")) out.reasoning += text->as_string();
    }
    if (choice.at("finish_reason").is_null()) continue;
    out.finishes += 1;
    out.finish_reason = choice.at("finish_reason").as_string();
  }
  return out;
}

}  // namespace moesaic
