// The program from outside: `run` and `chat`, their streams, signals and the terminal.
#include "cli/program.h"

#include "base/fresh_rng.h"
#include "base/json.h"
#include "moesaic/engine.h"
#include "text/unicode.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

constexpr const char* kStory = "Once upon a time, there was a little fox who";
constexpr const char* kOwl = "What sound does an owl make?";
constexpr const char* kSummary = "\\[prompt [0-9]+ tokens, [0-9.]+ tokens/s; generated [0-9]+, .* peak memory .*B\\]\n";

Arguments run_demo(Arguments more) {
  more.insert(more.begin(), {"run", kDemoModel});
  return more;
}

std::string text_of(Arguments more, const std::string& input = "") {
  const Finished result = run_program(run_demo(std::move(more)), input);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.err, MatchesRegex(kSummary));
  return result.out;
}

Engine& demo_engine() {
  static Engine engine = Engine::open({.model = kDemoModel, .threads = 2});
  return engine;
}

std::string greedy_text(std::vector<int32_t> tokens, int64_t count, bool chat) {
  auto completion = demo_engine().submit(
      {.tokens = std::move(tokens), .sampling = {.temperature = 0}, .max_new_tokens = count, .chat = chat});
  EXPECT_TRUE(completion.ok()) << completion.status().message();
  std::string text;
  while (auto chunk = completion->next()) text += chunk->text;
  return text;
}

std::vector<int32_t> chat_tokens(const JsonArray& messages) {
  return *demo_engine().tokenizer().encode_chat(write_json(messages));
}

Json message(const char* role, const std::string& text) {
  return JsonObject{{"role", role}, {"content", text}};
}

TEST(Run, StdoutIsTheTextAlone) {
  const std::string want = greedy_text(demo_engine().tokenizer().encode(kStory), 30, false) + "\n";
  EXPECT_GT(want.size(), 40u);
  EXPECT_EQ(text_of({"-p", kStory, "-n", "30", "--temperature", "0"}), want);
  EXPECT_EQ(text_of({"-f", "-", "-n", "30", "--temperature", "0"}, kStory), want);
  const TempDir dir;
  EXPECT_EQ(text_of({"-f", dir.write("prompt.txt", kStory), "-n", "30", "--temp", "0"}), want);
  EXPECT_EQ(run_program({"run", "-m", kDemoModel, "-p", kStory, "-n", "30", "--temp", "0", "-no-cnv"}).out, want);
}

// The peak is the program's own, however large the process is that started it.
TEST(Run, SummaryHasItsOwnPeak) {
  const std::vector<char> ballast(400'000'000, 1);
  const Finished result = run_program(run_demo({"-p", kStory, "-n", "3"}));
  const size_t at = result.err.find("peak memory ");
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_THAT(result.err, HasSubstr(" MB]"));
  const double megabytes = std::stod(result.err.substr(at + 12));
  EXPECT_GT(megabytes, 25);  // the weights
  EXPECT_LT(megabytes, 200) << ballast.size();
}

TEST(Run, SeedDecidesTheText) {
  const uint64_t seed = fresh_rng().bits();
  const auto sampled = [&](uint64_t s) {
    return text_of({"-p", kStory, "-n", "60", "--temperature", "1.2", "--top-p", "1", "--seed", std::to_string(s)});
  };
  EXPECT_EQ(sampled(seed), sampled(seed));
  EXPECT_NE(sampled(seed), sampled(seed + 1));
}

TEST(Run, StopEndsTheTextBeforeIt) {
  const std::string whole = text_of({"-p", kStory, "-n", "60", "--temperature", "0"});
  const size_t at = whole.find(' ', whole.size() / 2);
  ASSERT_NE(at, std::string::npos);
  const std::string stop = whole.substr(at, 3);
  const std::string want = whole.substr(0, whole.find(stop)) + "\n";
  EXPECT_EQ(text_of({"-p", kStory, "-n", "60", "--temperature", "0", "--stop", "#never#", "--stop", stop}), want);
  // The word after --stop is the only one that it takes.
  const Finished result =
      run_program({"run", "--stop", stop, kDemoModel, "-p", kStory, "-n", "60", "--temperature", "0"});
  EXPECT_EQ(result.out, want);
}

TEST(Run, ChatUsesTheTemplate) {
  const auto asked = [&](const JsonArray& messages, Arguments more) {
    const auto tokens = chat_tokens(messages);
    more.insert(more.end(), {"--chat", "-p", kOwl, "--temperature", "0"});
    const Finished result = run_program(run_demo(more));
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.err, StartsWith(fmt::format("[prompt {} tokens", tokens.size())));
    EXPECT_EQ(result.out, greedy_text(tokens, 0, true) + "\n");
    EXPECT_THAT(result.out, Not(HasSubstr("<|")));
  };
  asked({message("user", kOwl)}, {});
  for (const char* flag : {"--system", "-sys"})
    asked({message("system", "Answer in rhymes."), message("user", kOwl)}, {flag, "Answer in rhymes."});
}

TEST(Run, OutputIsWholeCharacters) {
  const uint64_t seed = fresh_rng().bits();
  for (uint64_t i = 0; i < 3; ++i) {
    const std::string out = text_of({"-p", "\u00e9\u4f60\U0001F600", "-n", "200", "--temperature", "2", "--top-p", "1",
                                     "--ignore-eos", "--seed", std::to_string(seed + i)});
    std::string valid;
    append_valid_utf8(valid, out, true);
    EXPECT_EQ(out, valid);
  }
}

// A generation that takes minutes: the reference backend, which is slow.
Arguments long_run(Arguments more) {
  more.insert(more.end(), {"--device", "ref", "--ignore-eos", "-t", "1"});
  return run_demo(std::move(more));
}

TEST(Run, InterruptEndsTheGeneration) {
  Process process(long_run({"-p", kStory, "--temperature", "0"}));
  ASSERT_TRUE(wait_until([&] { return !process.out().empty(); }));
  kill(process.pid(), SIGINT);
  const auto start = std::chrono::steady_clock::now();
  const Finished result = process.finish();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(result.code, 130);
  EXPECT_THAT(result.err, MatchesRegex(kSummary));
  EXPECT_THAT(result.out, testing::EndsWith("\n"));
  EXPECT_EQ(lines(result.out), 1) << result.out;
}

bool catches_interrupt(pid_t pid) {
  const std::string status = read_proc(pid, "status");
  const size_t at = status.find("SigCgt:");
  return at != std::string::npos && (std::stoull(status.substr(at + 8), nullptr, 16) >> (SIGINT - 1) & 1) != 0;
}

TEST(Run, InterruptEndsALongPrompt) {
  std::string prompt;
  for (int i = 0; i < 400; ++i) prompt += "the fox and the owl ";
  Process process(long_run({"-f", "-", "--max-num-batched-tokens", "4"}), prompt);
  ASSERT_TRUE(wait_until([&] { return catches_interrupt(process.pid()); }));
  kill(process.pid(), SIGINT);
  const Finished result = process.finish();
  EXPECT_EQ(result.code, 130);
  EXPECT_EQ(result.out, "\n");
  EXPECT_THAT(result.err, HasSubstr("generated 0,"));
}

std::string shell_quoted(const std::string& text) {
  return "'" + text + "'";
}

// The output and exit code of a shell's command.
std::pair<std::string, int> shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  for (int c; (c = std::fgetc(pipe)) != EOF;) out += static_cast<char>(c);
  const int status = pclose(pipe);
  return {out, WIFEXITED(status) ? WEXITSTATUS(status) : -1};
}

TEST(Run, ReaderThatLeavesEndsIt) {
  const std::string run = shell_quoted(kProgram) + " run " + shell_quoted(kDemoModel) + " -p Once --ignore-eos 2>&1";
  const auto [cut, code] = shell(run + " | head -c 10");
  EXPECT_EQ(cut.size(), 10u);
  EXPECT_EQ(code, 0);  // of head
  // A parent that ignores SIGPIPE: the write fails instead, and that is an error.
  const TempDir dir;
  const std::string log = shell_quoted((dir.path() / "log").string());
  const std::string program = shell_quoted(kProgram) + " run " + shell_quoted(kDemoModel) + " -p Once --ignore-eos";
  const auto [rest, status] =
      shell("trap '' PIPE; { " + program + " 2>" + log + "; echo code $? >>" + log + "; } | head -c 10; cat " + log);
  EXPECT_EQ(rest.substr(std::min<size_t>(rest.size(), 10)), "moesaic: stdout cannot be written: Broken pipe\ncode 1\n");
  EXPECT_EQ(status, 0);
}

TEST(Run, FullDiskIsAnError) {
  const std::string program = shell_quoted(kProgram), demo = shell_quoted(kDemoModel);
  for (const std::string& command : {program + " run " + demo + " -p Once -n 3", program + " inspect " + demo}) {
    const auto [message, code] = shell(command + " 2>&1 >/dev/full");
    EXPECT_EQ(message, "moesaic: stdout cannot be written: No space left on device\n");
    EXPECT_EQ(code, 1);
  }
}

TEST(Run, NameInTheHuggingFaceCache) {
  const TempDir home;
  home.write("hub/models--animals--owl/refs/main", "abc123\n");
  std::filesystem::create_directories(home.path() / "hub/models--animals--owl/snapshots");
  std::filesystem::create_directory_symlink(kDemoModel, home.path() / "hub/models--animals--owl/snapshots/abc123");
  const std::vector<std::string> environment = {"HF_HOME=" + home.path().string(), "HF_HUB_CACHE="};
  const Arguments run = {"run", "animals/owl", "-p", kStory, "-n", "5", "--temperature", "0"};
  const Finished found = run_program(run, "", environment);
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_EQ(found.out, text_of({"-p", kStory, "-n", "5", "--temperature", "0"}));
  expect_refusal(run_program({"run", "animals/fox", "-p", "x"}, "", environment), 1,
                 {"animals/fox", home.path().string()});
}

TEST(Chat, PipedQuestions) {
  const std::string first = greedy_text(chat_tokens({message("user", kOwl)}), 0, true);
  const JsonArray both = {message("user", kOwl), message("assistant", first), message("user", "And a cow?")};
  const std::string second = greedy_text(chat_tokens(both), 0, true);
  const Finished result = run_program({"chat", kDemoModel, "--temperature", "0"},
                                      fmt::format("{0}\nAnd a cow?\n/help\n\n/clear\n{0}\n/exit\nnever asked\n", kOwl));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  const size_t help = result.out.find("/clear");
  ASSERT_NE(help, std::string::npos) << result.out;
  EXPECT_EQ(result.out.substr(0, help), first + "\n\n" + second + "\n\n");
  EXPECT_THAT(result.out, testing::EndsWith("prompt\n" + first + "\n\n"));
}

TEST(Chat, QuestionThatDoesNotFitIsTakenBack) {
  std::string question = "Why?";
  for (int i = 0; i < 100; ++i) question += " Why?";
  const std::string answer = greedy_text(chat_tokens({message("user", kOwl)}), 0, true);
  const Finished result =
      run_program({"chat", kDemoModel, "--temperature", "0", "-c", "64"}, fmt::format("{}\n{}\n", question, kOwl));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, answer + "\n\n");
  EXPECT_EQ(lines(result.err), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("64 tokens"));
}

TEST(Chat, TerminalEditsLines) {
  const std::string answer = greedy_text(chat_tokens({message("user", kOwl)}), 0, true);
  TerminalProcess chat({"chat", kDemoModel, "--temperature", "0"});
  chat.expect("Ctrl-D ends");
  chat.expect("> ");
  ASSERT_TRUE(wait_until([&] { return !chat.echoes(); }));
  // "Wht sound does an owl make?", then to the start, two to the right, and the missing letter.
  std::string keys = kOwl;
  keys.erase(2, 1);
  chat.type(keys + "\001\033[C\033[C" + "a\r");
  chat.expect(answer.substr(0, answer.find('\n')));
  chat.expect("> ");
  chat.type("/help\r");
  chat.expect("/exit");
  chat.expect("> ");
  chat.type("\004");
  EXPECT_EQ(chat.finish(), 0);
  EXPECT_TRUE(chat.shown().ends_with("\n")) << testing::PrintToString(chat.shown());
}

TEST(Chat, InterruptAtThePromptRestoresTheTerminal) {
  TerminalProcess chat({"chat", kDemoModel});
  chat.expect("> ");
  ASSERT_TRUE(wait_until([&] { return !chat.echoes(); }));  // the line editor echoes by itself
  chat.type("half a que");
  chat.expect("half a que");
  chat.type("\003");
  EXPECT_TRUE(wait_until([&] { return chat.echoes(); }));
  EXPECT_EQ(chat.finish(), -SIGINT);
}

TEST(Chat, InterruptStopsTheAnswerOnly) {
  TerminalProcess chat({"chat", kDemoModel, "--device", "ref", "-t", "1"});
  chat.expect("> ");
  // The line editor echoes by itself. Keys that come before it has the terminal are echoed twice, and its own switching
  // back would be taken for the end of the line.
  ASSERT_TRUE(wait_until([&] { return !chat.echoes(); }));
  chat.type("Tell me a long story.\r");
  chat.expect("story.");
  ASSERT_TRUE(wait_until([&] { return chat.echoes(); }));  // the line editor is done
  chat.expect("\n");
  chat.expect_word();
  chat.type("\003");
  chat.expect("> ");
  chat.type("\004");
  EXPECT_EQ(chat.finish(), 0);
}

}  // namespace
}  // namespace moesaic
