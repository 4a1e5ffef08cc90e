// `run` with a model that drafts: the same text, and a summary that says how well it guessed.
#include "cli/program.h"
#include "support/mtp_checkpoint.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

struct Speculation : testing::Test {
  Speculation() : model("deepseek_v3", make_talking_mtp) { add_demo_tokenizer(model); }

  Finished run(Arguments more) const {
    more.insert(more.begin(), {"run", model.path(), "-c", "256", "-p", "Once upon a time", "-n", "40", "--temp", "0",
                               "--ignore-eos"});
    return run_program(std::move(more));
  }
  EditedCheckpoint model;
};

TEST_F(Speculation, SummaryHasTheAcceptanceRate) {
  const Finished plain = run({});
  ASSERT_EQ(plain.code, 0) << plain.err;
  EXPECT_THAT(plain.err, Not(HasSubstr("drafted")));
  for (const Arguments& flags : {Arguments{"--num-speculative-tokens", "2"},
                                 {"--speculative-num-steps", "2"},
                                 {"--speculative-config", R"({"method": "mtp", "num_speculative_tokens": 2})"}}) {
    const Finished result = run(flags);
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.out, plain.out);
    EXPECT_THAT(result.err, MatchesRegex(".*generated 40, [0-9.]+ tokens/s; drafted [0-9]+, accepted [0-9]+ "
                                         "\\([0-9.]+ %\\), [123]\\.[0-9]+ tokens per step; first token.*\n"));
  }
}

TEST_F(Speculation, BadFlagsAreRefused) {
  EXPECT_EQ(run({"--num-speculative-tokens", "17"}).code, 2);
  EXPECT_EQ(run({"--num-speculative-tokens", "-1"}).code, 2);
  expect_refusal(run({"--speculative-config", R"({"method": "ngram", "num_speculative_tokens": 2})"}), 1,
                 {"ngram", "expected \"mtp\""});
  expect_refusal(run({"--speculative-config", R"({"method": "mtp", "model": "x"})"}), 1, {"\"model\""});
  expect_refusal(run({"--speculative-config", R"({"method": "mtp"})"}), 1, {"num_speculative_tokens"});
  expect_refusal(run({"--speculative-config", "3"}), 1, {"--speculative-config"});
  expect_refusal(run_program({"run", kDemoModel, "-p", "x", "--num-speculative-tokens", "1"}), 1,
                 {"gpt_oss", "no multi-token prediction layer"});
}

}  // namespace
}  // namespace moesaic
