// Paths, methods, keys, media types and CORS, without sockets.
#include "server/routes.h"

#include <gmock/gmock.h>

#include <fstream>

#include "base/error.h"
#include "base/json.h"
#include "server/api.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

// An exchange that keeps its answer.
class RecordedExchange final : public http::Exchange {
 public:
  explicit RecordedExchange(http::Request request) : request_(std::move(request)) {}
  const http::Request& request() const override { return request_; }
  void respond(http::Response response) override { answer = std::move(response); }
  void start_stream(std::string, http::Headers) override {}
  void write(std::string) override {}
  void finish() override {}
  size_t buffered() const override { return 0; }
  bool open() const override { return true; }
  void on_close(std::function<void()>) override {}
  void on_drain(std::function<void()>) override {}
  void post(std::function<void()> task) override { task(); }

  http::Response answer{.status = 0};

 private:
  http::Request request_;
};

// Every endpoint answers with its own name.
Endpoints named() {
  const auto says = [](std::string name) {
    return [name](std::shared_ptr<http::Exchange> exchange) { exchange->respond({.body = name}); };
  };
  return {.chat_completions = says("chat"),
          .completions = says("completions"),
          .responses = says("responses"),
          .models = says("models"),
          .tokenize = says("tokenize"),
          .detokenize = says("detokenize"),
          .apply_template = says("apply_template"),
          .abort_request = says("abort"),
          .health_generate = says("health_generate"),
          .flush_cache = says("flush"),
          .health = says("health"),
          .version = says("version"),
          .metrics = says("metrics"),
          .stats = says("stats"),
          .load = says("load"),
          .server_info = says("server_info"),
          .model_info = says("model_info"),
          .chat_page = says("chat_page"),
          .dashboard = says("dashboard")};
}

http::Response ask(const std::string& method, const std::string& path, http::Headers headers = {},
                   RouterOptions options = {}) {
  http::Request request;
  request.method = method, request.path = path, request.headers = std::move(headers);
  const auto exchange = std::make_shared<RecordedExchange>(std::move(request));
  make_router(named(), std::move(options))(exchange);
  return exchange->answer;
}

std::string header(const http::Headers& headers, const std::string& name) {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return "";
}

std::string code_of(const http::Response& response) {
  const JsonObject body = parse_json(response.body, "answer").as_object();
  return std::string(body.at("error").as_object().at("code").as_string());
}

TEST(Routes, LeadWhereTheTableSays) {
  const std::vector<std::tuple<std::string, std::string, std::string>> table = {
      {"POST", "/v1/chat/completions", "chat"},
      {"POST", "/chat/completions", "chat"},
      {"POST", "/v1/completions", "completions"},
      {"POST", "/completions", "completions"},
      {"POST", "/v1/responses", "responses"},
      {"GET", "/v1/models", "models"},
      {"GET", "/models", "models"},
      {"GET", "/v1/models/org/name", "models"},
      {"GET", "/v1/models/", "models"},
      {"HEAD", "/v1/models", "models"},
      {"POST", "/tokenize", "tokenize"},
      {"POST", "/v1/tokenize", "tokenize"},
      {"POST", "/detokenize", "detokenize"},
      {"POST", "/apply-template", "apply_template"},
      {"GET", "/health", "health"},
      {"GET", "/ping", "health"},
      {"GET", "/ready", "health"},
      {"GET", "/health_generate", "health_generate"},
      {"GET", "/version", "version"},
      {"GET", "/metrics", "metrics"},
      {"GET", "/stats", "stats"},
      {"GET", "/load", "load"},
      {"GET", "/server_info", "server_info"},
      {"GET", "/get_server_info", "server_info"},
      {"GET", "/model_info", "model_info"},
      {"GET", "/get_model_info", "model_info"},
      {"POST", "/abort_request", "abort"},
      {"POST", "/flush_cache", "flush"},
      {"POST", "/reset_prefix_cache", "flush"},
      {"GET", "/", "chat_page"},
      {"GET", "/dashboard", "dashboard"}};
  for (const auto& [method, path, name] : table) EXPECT_EQ(ask(method, path).body, name) << method << " " << path;
}

TEST(Routes, UnknownPathsAre404) {
  for (const char* path :
       {"/v1/nothing", "/x", "/v1", "/v1x/models", "/healthy", "/v1/chat/completions/more", "/v1/health"}) {
    const http::Response response = ask("GET", path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_EQ(code_of(response), "not_found") << path;
  }
  for (const char* path : {"/v1/embeddings", "/v1/audio/speech", "/v1/batches", "/v1/files/abc", "/v1/messages"})
    EXPECT_EQ(code_of(ask("POST", path)), "unsupported_endpoint") << path;
  EXPECT_EQ(ask("GET", "/favicon.ico").status, 204);
}

TEST(Routes, WrongMethodsAre405WithAllow) {
  const http::Response get = ask("GET", "/v1/chat/completions");
  EXPECT_EQ(get.status, 405);
  EXPECT_EQ(header(get.headers, "Allow"), "POST, OPTIONS");
  EXPECT_EQ(header(ask("DELETE", "/v1/models").headers, "Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(ask("HEAD", "/v1/completions").status, 405);
}

TEST(Routes, FC050_BodiesDeclaredAsSomethingElseAre415) {
  for (const char* type : {"text/plain", "multipart/form-data; boundary=x", "json"}) {
    const http::Response response = ask("POST", "/v1/chat/completions", {{"content-type", type}});
    EXPECT_EQ(response.status, 415) << type;
    EXPECT_EQ(code_of(response), "unsupported_media_type");
  }
  for (const char* type : {"application/json", "Application/JSON ; charset=utf-8", "application/vnd.x+json", "",
                           "application/x-www-form-urlencoded"})
    EXPECT_EQ(ask("POST", "/v1/chat/completions", {{"Content-Type", type}}).body, "chat") << type;
  EXPECT_EQ(ask("POST", "/v1/chat/completions").body, "chat");
  EXPECT_EQ(ask("POST", "/flush_cache", {{"Content-Type", "text/plain"}}).body, "flush");  // takes no body
}

TEST(Routes, KeysProtectTheApiAndNotTheProbes) {
  RouterOptions locked;
  locked.keys = ApiKeys({"secret", "other"});
  for (const char* path : {"/v1/models", "/models", "/load", "/server_info", "/v1/nothing"}) {
    const http::Response response = ask("GET", path, {}, locked);
    EXPECT_EQ(response.status, 401) << path;
    EXPECT_EQ(code_of(response), "invalid_api_key");
    EXPECT_EQ(header(response.headers, "WWW-Authenticate"), "Bearer");
  }
  for (const char* path : {"/tokenize", "/apply-template", "/v1/completions", "/flush_cache", "/abort_request"})
    EXPECT_EQ(ask("POST", path, {}, locked).status, 401) << path;
  for (const char* path : {"/health", "/ping", "/version", "/metrics", "/stats", "/", "/dashboard"})
    EXPECT_EQ(ask("GET", path, {}, locked).status, 200) << path;
  EXPECT_EQ(ask("OPTIONS", "/v1/models", {}, locked).status, 204);
  const auto with = [&](http::Headers headers) { return ask("GET", "/v1/models", std::move(headers), locked).status; };
  EXPECT_EQ(with({{"Authorization", "Bearer secret"}}), 200);
  EXPECT_EQ(with({{"authorization", "bEARER other"}}), 200);
  EXPECT_EQ(with({{"X-API-Key", "secret"}}), 200);
  for (const char* wrong :
       {"Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Bearer SECRET", "Basic secret", "secret"})
    EXPECT_EQ(with({{"Authorization", wrong}}), 401) << wrong;
  locked.protect_metrics = true;
  EXPECT_EQ(ask("GET", "/metrics", {}, locked).status, 401);
  EXPECT_EQ(ask("GET", "/stats", {}, locked).status, 401);
  EXPECT_EQ(ask("GET", "/metrics", {{"Authorization", "Bearer secret"}}, locked).status, 200);
}

TEST(Routes, HashesAreSha256) {
  const KeyHash hash = hash_key("abc");  // FIPS 180-2, appendix B.1
  EXPECT_EQ(hash[0], 0xba);
  EXPECT_EQ(hash[1], 0x78);
  EXPECT_EQ(hash[31], 0xad);
}

TEST(Routes, KeyFilesHaveCommentsAndNeedAKey) {
  const std::string path = ::testing::TempDir() + "keys.txt";
  std::ofstream(path) << "# who may\n\n  one \r\ntwo\n";
  EXPECT_EQ(read_key_file(path), (std::vector<std::string>{"one", "two"}));
  std::ofstream(path) << "# nobody\n";
  EXPECT_THROW(read_key_file(path), Error);
  EXPECT_THROW(read_key_file(path + ".missing"), Error);
}

TEST(Routes, WhatNeedsTheEngineWaitsForIt) {
  RouterOptions loading;
  loading.not_ready = [] { return error_response(503, "not_ready", "Loading model"); };
  for (const char* path : {"/v1/models", "/health_generate", "/model_info"})
    EXPECT_EQ(ask("GET", path, {}, loading).status, 503) << path;
  EXPECT_EQ(ask("POST", "/v1/chat/completions", {}, loading).status, 503);
  for (const char* path : {"/health", "/metrics", "/version", "/", "/stats"})
    EXPECT_EQ(ask("GET", path, {}, loading).status, 200) << path;
  EXPECT_EQ(ask("GET", "/v1/chat/completions", {}, loading).status, 405);
}

TEST(Routes, NamesForMetricsAreFew) {
  EXPECT_EQ(route_name("/chat/completions"), "/v1/chat/completions");
  EXPECT_EQ(route_name("/v1/models/anything/at/all"), "/v1/models");
  EXPECT_EQ(route_name("/get_server_info"), "/server_info");
  EXPECT_EQ(route_name("/wp-login.php"), "other");
  EXPECT_TRUE(is_polled("/health"));
  EXPECT_FALSE(is_polled("/v1/completions"));
}

http::Headers cors(const CorsOptions& options, const std::string& method, const http::Headers& headers) {
  http::Request request;
  request.method = method, request.headers = headers;
  return cors_headers(options, request);
}

TEST(Cors, AnyOriginByDefault) {
  const http::Headers get = cors({}, "GET", {{"Origin", "http://a"}});
  EXPECT_EQ(header(get, "Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(header(get, "Access-Control-Allow-Methods"), "");
  EXPECT_THAT(header(get, "Access-Control-Expose-Headers"), HasSubstr("X-Request-Id"));
  const http::Headers preflight =
      cors({}, "OPTIONS", {{"Origin", "http://a"}, {"Access-Control-Request-Headers", "authorization,x-mine"}});
  EXPECT_EQ(header(preflight, "Access-Control-Allow-Headers"), "authorization,x-mine");
  EXPECT_EQ(header(preflight, "Access-Control-Allow-Methods"), "GET, POST, OPTIONS");
  EXPECT_EQ(header(preflight, "Access-Control-Max-Age"), "86400");
}

TEST(Cors, ListedOriginsAreEchoedAndOthersAreNot) {
  CorsOptions options;
  options.origins = {"http://a", "http://b"};
  EXPECT_EQ(header(cors(options, "GET", {{"Origin", "http://b"}}), "Access-Control-Allow-Origin"), "http://b");
  EXPECT_EQ(header(cors(options, "GET", {{"Origin", "http://b.evil"}}), "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(header(cors(options, "GET", {{"Origin", "http://c"}}), "Vary"), "Origin");
}

TEST(Cors, CredentialsEchoTheOrigin) {
  CorsOptions options;
  options.credentials = true;
  const http::Headers answer = cors(options, "GET", {{"Origin", "http://a"}});
  EXPECT_EQ(header(answer, "Access-Control-Allow-Origin"), "http://a");
  EXPECT_EQ(header(answer, "Access-Control-Allow-Credentials"), "true");
}

}  // namespace
}  // namespace moesaic
