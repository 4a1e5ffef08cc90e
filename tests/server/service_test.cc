// What the server says before there is an engine, while it drains, and after it has failed; then with an engine.
#include "server/service.h"

#include <gmock/gmock.h>

#include "base/json.h"
#include "server/http_server.h"
#include "server/pages.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

ServeOptions options(const std::string& model) {
  ServeOptions o;
  o.engine.model = model;
  o.engine.threads = 1;
  o.engine.max_num_seqs = 4;
  o.api.served_names = {"tiny"};
  o.metrics.model_name = "tiny";
  o.log_requests = RequestLog::none;
  o.version = "1.2.3";
  o.http.port = 0;
  return o;
}

struct ServiceTest : ::testing::Test {
  explicit ServiceTest(const std::string& model = "nowhere")
      : service(options(model)),
        server(service.http_options(), service.router(),
               [](int status, const std::string& code, const std::string& message) {
                 return error_response(status, code, message);
               }) {}
  RawClient connect() const { return RawClient(server.port()); }
  Reply get(const std::string& path) const { return connect().get(path); }
  Reply chat(const std::string& body) const { return connect().post("/v1/chat/completions", body); }

  Service service;
  http::Server server;
};

JsonObject error_of(const Reply& reply) {
  return parse_json(reply.body, "reply").as_object().at("error").as_object();
}

TEST_F(ServiceTest, WhileLoadingProbesSeeProgressAndRequestsAreTurnedAway) {
  service.loaded_bytes = 25, service.total_bytes = 100;
  for (const char* path : {"/health", "/ready", "/ping", "/v1/models"}) {
    const Reply reply = get(path);
    EXPECT_EQ(reply.status, 503) << path;
    EXPECT_EQ(reply.header("Retry-After"), "5");
    const JsonObject error = error_of(reply);
    EXPECT_EQ(error.at("code").as_string(), "not_ready");
    EXPECT_THAT(std::string(error.at("message").as_string()), HasSubstr("Loading model"));
    EXPECT_EQ(error.at("details").as_object().at("loaded_bytes").as_int64(), 25);
    EXPECT_EQ(error.at("details").as_object().at("total_bytes").as_int64(), 100);
  }
  EXPECT_EQ(chat("{}").status, 503);
  EXPECT_THAT(get("/metrics").body, HasSubstr("moesaic:load_bytes{engine=\"0\",model_name=\"tiny\"} 25\n"));
  EXPECT_THAT(get("/metrics").header("Content-Type"), HasSubstr("version=0.0.4"));
  EXPECT_EQ(parse_json(get("/stats").body, "stats").as_object().at("loaded_bytes").as_int64(), 25);
  EXPECT_EQ(get("/version").body, R"({"version":"1.2.3"})");
  EXPECT_EQ(get("/load").body, R"({"server_load":0})");
  EXPECT_THAT(get("/server_info").body, HasSubstr(R"("status":"not_ready")"));
  EXPECT_EQ(get("/").status, embedded_page("chat").empty() ? 404 : 200);
}

struct DemoServiceTest : ServiceTest {
  DemoServiceTest() : ServiceTest(MOESAIC_SOURCE_DIR "/models/demo") { service.load(); }

  int64_t stat(const char* name) const {
    return parse_json(get("/stats").body, "stats").as_object().at(name).as_int64();
  }
};

const std::string kLong =
    R"({"messages":[{"role":"user","content":"Tell me a story."}],"max_tokens":1500,"ignore_eos":true,"stream":true})";
const std::string kShort = R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":3,"ignore_eos":true})";

TEST_F(DemoServiceTest, ServesOnceItIsLoaded) {
  EXPECT_EQ(get("/health").body, R"({"status":"ok"})");
  const Reply reply = chat(kShort);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_NE(reply.header("X-Request-Id"), "");
  EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), "*");
  EXPECT_EQ(reply.header("X-Content-Type-Options"), "nosniff");
  const std::string metrics = get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny\"} 3\n"));
  EXPECT_THAT(metrics, HasSubstr("vllm:e2e_request_latency_seconds_count{engine=\"0\",model_name=\"tiny\"} 1\n"));
  EXPECT_THAT(get("/model_info").body, HasSubstr(R"("is_generation":true)"));
  EXPECT_EQ(connect().post("/flush_cache", "").status, 200);
  EXPECT_TRUE(service.engine_lives());
}

TEST_F(DemoServiceTest, FC043_ClientsThatLeaveFreeEverything) {
  ASSERT_EQ(chat(kShort).status, 200);
  const int64_t blocks = stat("blocks_used");
  std::vector<RawClient> clients;
  for (int i = 0; i < 24; ++i) {  // 4 run, the others wait
    clients.push_back(connect());
    const std::string body = i % 2 == 0 ? kLong : kLong.substr(0, kLong.rfind(",\"stream\"")) + "}";
    clients.back().send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: " +
                        std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  EXPECT_TRUE(clients[0].sees("data: "));
  ASSERT_TRUE(eventually([&] { return stat("running") > 0; }));
  for (size_t i = 0; i < clients.size(); ++i) i % 3 == 0 ? clients[i].reset() : clients[i].close();
  EXPECT_TRUE(eventually([&] { return stat("running") == 0 && stat("waiting") == 0; }));
  EXPECT_TRUE(eventually([&] { return stat("blocks_used") == blocks; }));
  EXPECT_LT(stat("generation_tokens"), 24 * 1500);
  EXPECT_TRUE(eventually([&] { return service.api->in_flight() == 0; }));
  EXPECT_EQ(chat(kShort).status, 200);
}

TEST_F(DemoServiceTest, FC044_TwoRequestsInFlightMayHaveOneId) {
  const std::string head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-Request-Id: x\r\nContent-Length: ";
  const std::string body = R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":40,"ignore_eos":true,)"
                           R"("request_id":"x"})";
  RawClient first = connect(), second = connect();
  for (RawClient* client : {&first, &second}) client->send(head + std::to_string(body.size()) + "\r\n\r\n" + body);
  for (RawClient* client : {&first, &second}) {
    const Reply reply = client->reply();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.header("X-Request-Id"), "x");
    const JsonObject answer = parse_json(reply.body, "reply").as_object();
    EXPECT_EQ(answer.at("usage").as_object().at("completion_tokens").as_int64(), 40);
  }
  EXPECT_EQ(connect().post("/v1/chat/completions", kShort, "X-Request-Id: x\r\n").status, 200);
}

TEST_F(DemoServiceTest, FC050_MalformedBodiesAre4xxWithTheErrorShape) {
  const auto with = [](const std::string& field) {
    return R"({"messages":[{"role":"user","content":"Hi"}],)" + field + "}";
  };
  const std::tuple<const char*, std::string, std::string, int> cases[] = {
      {"/v1/chat/completions", "{", "", 400},
      {"/v1/chat/completions", "[]", "", 400},
      {"/v1/chat/completions", R"({"messages":"hi"})", "", 400},
      {"/v1/chat/completions", with(R"("temperature":"hot")"), "", 400},
      {"/v1/chat/completions", with(R"("top_p":-1)"), "", 400},
      {"/v1/chat/completions", with(R"("n":0)"), "", 400},
      {"/v1/chat/completions", with(R"("response_format":{"type":"json_schema","schema":{}})"), "", 400},
      {"/v1/chat/completions", with(R"("tools":[{}])"), "", 400},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":null}]})", "", 400},
      {"/detokenize", R"({"tokens":[-1]})", "", 400},
      {"/v1/chat/completions", kShort, "Content-Type: text/plain\r\n", 415},
      {"/v1/chat/completions", std::string(10'000, '['), "", 400}};
  for (const auto& [path, body, headers, status] : cases) {
    const Reply reply = connect().post(path, body, headers);
    EXPECT_EQ(reply.status, status) << body.substr(0, 100) << reply.body;
    const JsonObject error = error_of(reply);
    for (const char* key : {"message", "type", "param", "code"}) EXPECT_TRUE(error.contains(key)) << reply.body;
    EXPECT_NE(error.at("message").as_string(), "");
  }
  EXPECT_EQ(chat(kShort).status, 200);
}

TEST_F(DemoServiceTest, WhileDrainingRequestsAreTurnedAwayOnOpenConnections) {
  RawClient kept = connect();
  EXPECT_EQ(kept.get("/health").status, 200);
  service.phase = Service::Phase::draining;
  server.stop_accepting();
  const Reply draining = kept.post("/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(draining.status, 503);
  EXPECT_EQ(error_of(draining).at("code").as_string(), "not_ready");
  EXPECT_EQ(draining.header("Connection"), "close");
}

TEST_F(DemoServiceTest, AfterTheEngineFailedEverythingIs503) {
  service.phase = Service::Phase::dead;
  EXPECT_EQ(error_of(get("/health")).at("code").as_string(), "engine_dead");
  EXPECT_EQ(chat(kShort).status, 503);
  EXPECT_EQ(get("/metrics").status, 200);
}

}  // namespace
}  // namespace moesaic
