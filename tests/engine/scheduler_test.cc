// Who runs when: users take turns, the urgent go first, long prompts do not hold up those who generate, and admission
// by the worst case never takes memory back.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "support/answers.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

EngineOptions options(int64_t sequences) {
  return {.model = golden("gpt_oss-mxfp4"),
          .precision = "float32",
          .threads = 1,
          .max_model_len = 1024,
          .max_num_seqs = sequences,
          .max_num_batched_tokens = 64};
}

Request request(int32_t first, int64_t count, int64_t prompt = 4) {
  std::vector<int32_t> tokens(static_cast<size_t>(prompt), 7);
  tokens[0] = first;
  return {.tokens = std::move(tokens), .sampling = {.temperature = 0}, .max_new_tokens = count, .ignore_eos = true};
}

// The order in which requests begin to get tokens, all submitted while a first one runs alone.
std::vector<std::string> order(Engine& engine, const std::vector<std::pair<std::string, Request>>& wanted) {
  struct Began {  // outlives the last call of on_ready, which may come after the answer's end
    std::mutex mutex;
    std::vector<std::string> names;
  };
  const auto began = std::make_shared<Began>();
  Request busy = request(1, 300);
  busy.user = "somebody else";
  auto blocker = engine.submit(busy);
  EXPECT_TRUE(blocker.ok() && blocker->next());
  std::vector<Completion> completions;
  for (const auto& [name, request] : wanted) {
    completions.push_back(std::move(*engine.submit(request)));
    completions.back().on_ready([began, name = name, first = true]() mutable {
      const std::lock_guard lock(began->mutex);
      if (std::exchange(first, false)) began->names.push_back(name);
    });
  }
  drain(*blocker);
  for (Completion& completion : completions) drain(completion);
  const std::lock_guard lock(began->mutex);
  return began->names;
}

using Names = std::vector<std::string>;

std::pair<std::string, Request> of_user(const std::string& user, int32_t first) {
  Request out = request(first, 20);
  out.user = user;
  return {user, out};
}

TEST(Scheduler, UsersTakeTurns) {
  Engine engine = Engine::open(options(1));
  EXPECT_EQ(order(engine, {of_user("a", 2), of_user("a", 3), of_user("a", 4), of_user("b", 5), of_user("b", 6)}),
            Names({"a", "b", "a", "b", "a"}));
}

TEST(Scheduler, OneUserIsFirstComeFirstServed) {
  Engine engine = Engine::open(options(1));
  std::vector<std::pair<std::string, Request>> wanted;
  for (int32_t i = 0; i < 5; ++i) wanted.emplace_back(std::to_string(i), request(2 + i, 10));
  EXPECT_EQ(order(engine, wanted), Names({"0", "1", "2", "3", "4"}));
}

TEST(Scheduler, TheUrgentGoFirstWherePrioritiesCount) {
  std::vector<std::pair<std::string, Request>> wanted;
  for (int32_t priority : {3, 1, 2}) {
    wanted.emplace_back(std::to_string(priority), request(10 + priority, 10));
    wanted.back().second.priority = priority;
  }
  EngineOptions by_priority = options(1);
  by_priority.schedule_policy = "priority";
  Engine urgent = Engine::open(by_priority), fair = Engine::open(options(1));
  EXPECT_EQ(order(urgent, wanted), Names({"1", "2", "3"}));
  EXPECT_EQ(order(fair, wanted), Names({"3", "1", "2"}));
}

// A prompt of ten chunks: who generates gets a token in each of those steps.
TEST(Scheduler, LongPromptsDoNotHoldUpWhoGenerates) {
  Engine engine = Engine::open(options(2));
  auto writer = engine.submit(request(1, 900));
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->next());
  const int64_t prefills = engine.stats().prefill_steps;
  auto reader = engine.submit(request(2, 1, 640));
  ASSERT_TRUE(reader.ok());
  int64_t before = 0, during = 0;
  while (writer->try_next()) ++before;
  ASSERT_TRUE(reader->next());
  while (writer->try_next()) ++during;
  const auto steps = [&] { return engine.stats().prefill_steps - prefills; };
  for (int i = 0; i < 1000 && steps() < 10; ++i)  // the numbers follow a step's tokens
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(steps(), 10);
  EXPECT_GE(before + during, 9);
}

TEST(Scheduler, TheWorstCaseIsNeverPreempted) {
  EngineOptions tight = options(4);
  tight.kv_cache_tokens = 12 * 64;
  EngineOptions safe = tight;
  safe.admission = "worst_case";
  Engine preempting = Engine::open(tight), reserving = Engine::open(safe);
  std::vector<Request> requests;
  for (int32_t i = 0; i < 6; ++i) requests.push_back(request(2 + i, 380, 100));
  const std::vector<Answer> a = ask_together(preempting, requests), b = ask_together(reserving, requests);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].ids, b[i].ids);
  EXPECT_GT(preempting.stats().preemptions, 0);
  EXPECT_EQ(reserving.stats().preemptions, 0);
}

}  // namespace
}  // namespace moesaic
