// moesaic chat: a conversation in the terminal, with line editing and history (libedit).
#include <histedit.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"

namespace moesaic {
namespace {

constexpr const char* kHelp =
    "/clear    forget the conversation\n"
    "/system T set the system message to T and forget the conversation\n"
    "/help     this list\n"
    "/exit     end (also Ctrl-D)\n"
    "Ctrl-C stops an answer, and ends the program at the prompt\n";

const char* prompt_text(EditLine*) {
  return "> ";
}

// Lines from the terminal with editing, or plain lines when stdin is not one.
class LineReader {
 public:
  LineReader() {
    if (isatty(STDIN_FILENO) == 0) return;
    edit_ = el_init("moesaic", stdin, stdout, stderr);
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    el_set(edit_, EL_PROMPT, prompt_text);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_SIGNAL, 1);  // the terminal is as before when Ctrl-C ends the program
    el_set(edit_, EL_HIST, history, history_);
    el_source(edit_, nullptr);
  }
  ~LineReader() {
    if (edit_ == nullptr) return;
    history_end(history_);
    el_end(edit_);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end; nothing at the end of input.
  std::optional<std::string> next() {
    std::string line;
    if (edit_ == nullptr) return std::getline(std::cin, line) ? std::optional(line) : std::nullopt;
    int length = 0;
    const char* text = el_gets(edit_, &length);
    if (text == nullptr || length <= 0) return std::nullopt;
    line.assign(text, static_cast<size_t>(length));
    HistEvent event;
    if (line.size() > 1) history(history_, &event, H_ENTER, line.c_str());
    line.erase(line.find_last_not_of("\r\n") + 1);
    return line;
  }

 private:
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
};

class Conversation {
 public:
  Conversation(Engine& engine, const ChatOptions& options)
      : engine_(engine), options_(options), system_(options.system) {
    clear();
  }

  void clear() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }
  void set_system(std::string system) {
    system_ = std::move(system);
    clear();
  }

  // Asks and streams the answer; a failed or refused question is taken back, and the reason printed.
  void ask(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    const auto tokens = engine_.tokenizer().encode_chat(write_json(messages_));
    if (!tokens.ok()) return take_back(tokens.status());
    auto completion = engine_.submit({.tokens = *tokens,
                                      .sampling = options_.sampling.over(engine_.info().default_sampling),
                                      .max_new_tokens = options_.max_tokens,
                                      .chat = true});
    if (!completion.ok()) return take_back(completion.status());
    const std::string answer = stream(*completion);
    if (!completion->status().ok() && completion->finish_reason() != FinishReason::cancelled)
      return take_back(completion->status());
    messages_.push_back({{"role", "assistant"}, {"content", answer}});
  }

 private:
  std::string stream(Completion& completion) {
    const InterruptGuard interrupt([&] { completion.cancel(); });
    std::string answer;
    while (auto chunk = completion.next()) {
      answer += chunk->text;
      show_reasoning(chunk->reasoning);
      write_stdout(chunk->text);
    }
    write_stdout("\n\n");
    return answer;
  }

  // Dimmed on a terminal, left out elsewhere.
  static void show_reasoning(const std::string& text) {
    if (!text.empty() && isatty(STDOUT_FILENO) != 0) fmt::print("\033[2m{}\033[0m", text);
  }

  void take_back(const Status& status) {
    messages_.pop_back();
    fmt::print(stderr, "moesaic: {}{}\n", status.message(),
               messages_.size() > 1 ? "; /clear forgets the conversation so far" : "");
  }

  Engine& engine_;
  const ChatOptions& options_;
  std::string system_;
  JsonArray messages_;
};

// Handles a line that begins with a slash; false ends the chat.
bool command(const std::string& line, Conversation& conversation) {
  if (line == "/exit" || line == "/quit") return false;
  if (line == "/clear") conversation.clear();
  else if (line.starts_with("/system ")) conversation.set_system(line.substr(8));
  else write_stdout(kHelp);
  return true;
}

}  // namespace

int run_chat(const ChatOptions& options) {
  EngineOptions engine_options = options.engine;
  engine_options.max_num_seqs = 1;
  Engine engine = Engine::open(engine_options);
  if (!engine.tokenizer().has_chat_template())
    fail_argument("{}", engine.tokenizer().encode_chat("[]").status().message());
  Conversation conversation(engine, options);
  LineReader reader;
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal)
    fmt::print("{} on {}. /help lists commands, Ctrl-D ends.\n", engine_options.model, engine.info().device);
  while (auto line = reader.next()) {
    if (line->empty()) continue;
    if (line->front() == '/' ? !command(*line, conversation) : (conversation.ask(*line), false)) return 0;
  }
  if (terminal) write_stdout("\n");  // after the prompt that Ctrl-D ended
  return 0;
}

}  // namespace moesaic
