// `moesaic serve` as a program: flags, signals, exit codes.
#include <map>
#include <sstream>

#include "base/json.h"
#include "cli/program.h"
#include "server/raw_client.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A server that was told to take any free port, and says which.
struct Served {
  explicit Served(Arguments more = {}, std::vector<std::string> environment = {})
      : process(arguments(std::move(more)), "", std::move(environment)) {
    EXPECT_TRUE(wait_until([&] { return process.err().find("serving") != std::string::npos; })) << process.err();
    const std::string text = process.err(), before = "http://127.0.0.1:";
    const size_t at = text.find(before, text.find("serving"));
    port = at == std::string::npos ? 0 : std::atoi(text.c_str() + at + before.size());
  }
  static Arguments arguments(Arguments more) {
    Arguments all = {"serve", "--port", "0", "-t", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  RawClient connect() const { return RawClient(port); }
  // A stream that would take long, of which the first event has come.
  RawClient stream() const {
    RawClient client = connect();
    const std::string body = R"({"prompt":"Once","max_tokens":1500,"ignore_eos":true,"stream":true})";
    client.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    EXPECT_TRUE(client.sees("data: "));
    return client;
  }

  Process process;
  int port = 0;
};

TEST(Serve, ServesTheDemoModelWhereNoneIsGivenAndEndsOnSigterm) {
  Served served;
  const Reply models = served.connect().get("/v1/models");
  EXPECT_EQ(models.status, 200);
  EXPECT_THAT(models.body, HasSubstr("\"id\":\"demo\""));
  served.process.signal(SIGTERM);
  const Finished end = served.process.finish();
  EXPECT_EQ(end.code, 0);
  EXPECT_THAT(end.err, HasSubstr("path=\"/v1/models\" status=200"));
}

TEST(Serve, SigtermLetsRunningRequestsFinish) {
  Served served({"--max-model-len", "2048"});
  RawClient client = served.stream();
  served.process.signal(SIGTERM);
  EXPECT_TRUE(client.sees("data: [DONE]", 60));
  EXPECT_THAT(client.read_until([](auto& all) { return !all.empty(); }), HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_EQ(served.process.finish().code, 0);
}

TEST(Serve, AfterTheDrainTimeoutTheRestEndsWithAnErrorEvent) {
  Served served({"--drain-timeout", "0"});
  RawClient client = served.stream();
  served.process.signal(SIGTERM);
  EXPECT_TRUE(client.sees("data: [DONE]"));
  EXPECT_THAT(client.read_until([](auto& all) { return !all.empty(); }), HasSubstr("data: {\"error\":"));
  EXPECT_EQ(served.process.finish().code, 0);
}

TEST(Serve, ASecondSignalEndsAtOnce) {
  Served served;
  RawClient client = served.stream();
  served.process.signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  served.process.signal(SIGINT);
  EXPECT_THAT(served.process.finish().code, ::testing::AnyOf(128 + SIGINT, 0));  // 0: the stream was quicker
}

TEST(Serve, FlagsComeFromTheLineThenTheFileThenTheEnvironment) {
  const TempDir dir;
  const std::string file =
      dir.write("c.yaml", "served_model_name: [from-file, second]\napi-key: file-key\nlog-format: json\n");
  Served served({"--config", file, "--log-requests", "none", "--gpu-memory-utilization=0.5"},
                {"MOESAIC_SERVED_MODEL_NAME=from-environment", "MOESAIC_MAX_MODEL_LEN=512"});
  EXPECT_EQ(served.connect().get("/v1/models").status, 401);
  const Reply models = served.connect().get("/v1/models", "Authorization: Bearer file-key\r\n");
  EXPECT_THAT(models.body, HasSubstr("\"id\":\"from-file\""));
  EXPECT_THAT(models.body, HasSubstr("\"id\":\"second\""));
  EXPECT_THAT(models.body, HasSubstr("\"max_model_len\":512"));
  served.process.signal(SIGTERM);
  const Finished end = served.process.finish();
  EXPECT_THAT(end.err, HasSubstr("\"message\":\"--gpu-memory-utilization is ignored: "));
  EXPECT_THAT(end.err, Not(HasSubstr("\"event\":\"request\"")));
}

TEST(Serve, LogsRequestsAsJsonWithTheirBodiesWhereAskedTo) {
  Served served({"--log-format", "json", "--log-requests", "full"});
  const Reply reply =
      served.connect().post("/v1/completions", R"({"prompt":"a \"fox\"","max_tokens":2})", "X-Request-Id: mine-1\r\n");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("X-Request-Id"), "mine-1");
  EXPECT_EQ(served.connect().get("/health").status, 200);  // probes are not logged
  served.process.signal(SIGTERM);
  std::istringstream log(served.process.finish().err);
  std::map<std::string, JsonObject> events;
  for (std::string line; std::getline(log, line);)
    if (line.starts_with('{')) {
      const JsonObject object = parse_json(line, "log").as_object();
      if (object.contains("event")) events[std::string(object.at("event").as_string())] = object;
    }
  ASSERT_EQ(events.size(), 3);
  for (const auto& [name, event] : events) EXPECT_EQ(event.at("id").as_string(), "mine-1") << name;
  EXPECT_EQ(events["body"].at("text").as_string(), R"({"prompt":"a \"fox\"","max_tokens":2})");
  EXPECT_EQ(events["request"].at("status").as_int64(), 200);
  EXPECT_EQ(events["request"].at("path").as_string(), "/v1/completions");
  EXPECT_EQ(events["answer"].at("generated_tokens").as_int64(), 2);
}

TEST(Serve, OnATerminalATableSaysWhatIsServed) {
  TerminalProcess process({"serve", "--port", "0", "-t", "1", "--max-num-seqs", "3"});
  process.expect("serving demo at http://127.0.0.1:");
  process.expect("model    ");
  process.expect("(gpt_oss)");
  process.expect("context  2048 tokens, 3 sequences at once");
  process.expect("memory   weights ");
  process.type("\x03");  // Ctrl-C
  EXPECT_EQ(process.finish(), 0);
}

TEST(Serve, BadFlagsAreOneLine) {
  const std::tuple<Arguments, int, const char*> bad[] = {
      {{"serve", "--prot", "1"}, 2, "there is no flag --prot; did you mean --port"},
      {{"serve", "--max-num-seq=3"}, 2, "there is no flag --max-num-seq; did you mean --max-num-seqs"},
      {{"serve", "--port"}, 2, "--port needs a value; see"},
      {{"serve", "--port", "70000"}, 2, "--port"},
      {{"serve", "--ep", "2"}, 1, "--ep-size is 2; this version serves from one device"},
      {{"serve", "-tp", "2"}, 1, "--tensor-parallel-size is 2; this version serves from one device"},
      {{"serve", "--block-size", "16"}, 1, "cache blocks have 64 tokens"},
      {{"serve", "--kv-cache-bytes", "100"}, 1, "--kv-cache-bytes is 100"},
      {{"serve", "--metrics-compat", "x"}, 1, "--metrics-compat is \"x\""},
      {{"serve", "--allowed-media-domains", "[::1]:80,http://a"}, 1, "--allowed-media-domains has \"http://a\""},
      {{"serve", "--host", "nowhere.invalid"}, 1, "--host nowhere.invalid is no address"},
      {{"serve", "--config", "missing.yaml"}, 1, "missing.yaml"},
      {{"serve", "no-such-model"}, 1, "no-such-model"}};
  for (const auto& [arguments, code, message] : bad) {
    const Finished end = run_program(arguments);
    EXPECT_EQ(end.code, code) << arguments[1];
    EXPECT_THAT(end.err, HasSubstr(message));
  }
}

// What llama.cpp's and SGLang's servers take and this one does not need.
TEST(Serve, ForeignFlagsAreNamedInAWarning) {
  const Finished end = run_program({"serve", "--dry-run", "-ctk", "q8_0", "-cmoe", "-ts", "1,1", "-md", "draft",
                                    "--seed", "3", "--deterministic", "--enable-dp-attention", "--ep-size", "1"});
  EXPECT_EQ(end.code, 0) << end.err;
  for (const char* name : {"--cache-type-k", "--cpu-moe", "--tensor-split", "--model-draft", "--seed",
                           "--deterministic", "--enable-dp-attention"})
    EXPECT_THAT(end.err, HasSubstr(std::string("warning: ") + name + " is ignored: "));
}

TEST(Serve, DryRunPrintsTheMemoryPlanAndServesNothing) {
  const Finished fits = run_program({"serve", "--dry-run", "--max_num_seqs", "4"});
  EXPECT_EQ(fits.code, 0);
  EXPECT_THAT(fits.out, HasSubstr("weights"));
  EXPECT_THAT(fits.out, HasSubstr("4 sequences of 2048 tokens"));
  EXPECT_THAT(fits.err, Not(HasSubstr("listening")));
  const Finished large = run_program({"serve", "--dry-run", "--max-num-seqs", "40000000"});
  EXPECT_EQ(large.code, 1);
  EXPECT_THAT(large.err, HasSubstr("does not fit"));
}

}  // namespace
}  // namespace moesaic
