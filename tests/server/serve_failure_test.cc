// serve() when the engine fails in a step: requests end with an error, the process with the code for a supervisor.
#include <gmock/gmock.h>

#include "base/log.h"
#include "server/raw_client.h"
#include "server/serve.h"
#ifdef MOESAIC_CUDA_IS_EMULATED
#include "faults.h"

namespace moesaic {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

int free_port() {
  http::ServerOptions any;
  any.port = 0;
  const http::Server server(any, nullptr, nullptr);
  return server.port();
}

ServeOptions failing_options(int port) {
  ServeOptions o;
  o.engine = {.model = MOESAIC_SOURCE_DIR "/models/demo", .device = "cuda", .threads = 1, .max_num_seqs = 2};
  o.engine.max_model_len = 128;
  o.api.served_names = {"tiny"};
  o.metrics.model_name = "tiny";
  o.http.port = port;
  return o;
}

// Says on stderr what the client sees before; what it sees afterwards is in the request log.
void ask_before_and_during_a_failure(int port) {
  const std::string body = R"({"prompt":"Once","max_tokens":3,"ignore_eos":true})";
  const bool ready = eventually([&] { return RawClient(port).get("/health").status == 200; }, 60'000);
  const Reply before = RawClient(port).post("/v1/completions", body);
  std::fprintf(stderr, "ready %d, before %d\n", ready, before.status);
  emulated_cuda::graphs_fail = true;
  RawClient(port).post("/v1/completions", body);
}

TEST(ServeFailureDeathTest, AFailedStepEndsTheProcessWith70) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        set_log_level(LogLevel::info);
        const int port = free_port();
        std::thread client(ask_before_and_during_a_failure, port);
        std::_Exit(serve(failing_options(port)));
      },
      testing::ExitedWithCode(kExitDead),
      AllOf(HasSubstr("ready 1, before 200"), ContainsRegex("path=\"/v1/completions\" status=50[03]"),
            HasSubstr("the engine failed in a step")));
}

}  // namespace
}  // namespace moesaic
#endif
