// Runs the built `moesaic` program as a user would: arguments, standard streams, signals, a terminal.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <spawn.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/mapped_file.h"
#include "base/temp_dir.h"

namespace moesaic {

using Arguments = std::vector<std::string>;
inline const std::string kProgram = MOESAIC_BINARY_DIR "/bin/moesaic";
inline const std::string kMxfp4Model = MOESAIC_SOURCE_DIR "/tests/golden/gpt_oss-mxfp4";
inline const std::string kDemoModel = MOESAIC_SOURCE_DIR "/models/demo";
constexpr auto kPatience = std::chrono::seconds(60);  // what runs longer hangs

// Waits until `done()`, asking every millisecond; false when patience ends first.
template <typename Condition>
bool wait_until(Condition done) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// Waits for the end: the exit code, or minus the signal that killed it. Kills what outlives the patience.
inline int wait_for(pid_t pid) {
  int status = 0;
  if (!wait_until([&] { return waitpid(pid, &status, WNOHANG) == pid; })) {
    ADD_FAILURE() << "the program hangs";
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct Finished {
  int code = 0;  // as of wait_for()
  std::string out, err;
};

// A program whose streams are files. `input` is its standard input, `environment` is added to ours ("NAME=value").
class Process {
 public:
  explicit Process(Arguments arguments, const std::string& input = "", std::vector<std::string> environment = {}) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, dir_.write("in", input).c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out_path().c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&files, 2, err_path().c_str(), O_WRONLY | O_CREAT, 0600);
    for (char** variable = environ; *variable != nullptr; ++variable) environment.emplace_back(*variable);
    arguments.insert(arguments.begin(), kProgram);
    CHECK(posix_spawn(&pid_, kProgram.c_str(), &files, nullptr, pointers(arguments).data(),
                      pointers(environment).data()) == 0,
          "{}", kProgram);
    posix_spawn_file_actions_destroy(&files);
  }

  pid_t pid() const { return pid_; }
  std::string out() const { return read_text_file(out_path()); }
  std::string err() const { return read_text_file(err_path()); }
  void signal(int number) const { kill(pid_, number); }
  Finished finish() {
    const int code = wait_for(pid_);
    return {code, out(), err()};
  }

 private:
  std::filesystem::path out_path() const { return dir_.path() / "out"; }
  std::filesystem::path err_path() const { return dir_.path() / "err"; }

  TempDir dir_;
  pid_t pid_ = -1;
};

inline Finished run_program(Arguments arguments, const std::string& input = "",
                            std::vector<std::string> environment = {}) {
  return Process(std::move(arguments), input, std::move(environment)).finish();
}

// A program on a terminal of its own.
class TerminalProcess {
 public:
  explicit TerminalProcess(Arguments arguments) {
    arguments.insert(arguments.begin(), kProgram);
    const auto argv = pointers(arguments);
    winsize size{.ws_row = 24, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      setenv("TERM", "xterm", 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~TerminalProcess() { close(terminal_); }
  TerminalProcess(const TerminalProcess&) = delete;
  TerminalProcess& operator=(const TerminalProcess&) = delete;

  void type(std::string_view keys) const {
    ASSERT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Reads until `text` has come after what an earlier call waited for.
  void expect(const std::string& text) {
    size_t found = 0;
    const bool came = wait_until([&] { return read_some(), (found = shown_.find(text, seen_)) != std::string::npos; });
    ASSERT_TRUE(came) << "waited for " << testing::PrintToString(text) << " in " << testing::PrintToString(shown_);
    seen_ = found + text.size();
  }
  // Reads until a small letter has come.
  void expect_word() {
    constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyz";
    ASSERT_TRUE(wait_until([&] { return read_some(), shown_.find_first_of(kLetters, seen_) != std::string::npos; }));
    seen_ = shown_.size();
  }
  // The rest of the output; `shown()` holds all of it.
  int finish() {
    wait_until([&] { return !read_some(); });
    return wait_for(pid_);
  }
  const std::string& shown() const { return shown_; }
  bool echoes() const {
    termios settings{};
    tcgetattr(terminal_, &settings);
    return (settings.c_lflag & ECHO) != 0 && (settings.c_lflag & ICANON) != 0;
  }

 private:
  // False at the end.
  bool read_some() {
    pollfd ready{terminal_, POLLIN, 0};
    if (poll(&ready, 1, 10) == 0) return true;
    char bytes[4096];
    const ssize_t count = read(terminal_, bytes, sizeof bytes);
    if (count > 0) shown_.append(bytes, static_cast<size_t>(count));
    return count > 0;
  }

  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string shown_;
  size_t seen_ = 0;
};

// A file of /proc/PID, which has no size to map.
inline std::string read_proc(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline int64_t lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

// Refused with this exit code, nothing on stdout and one line on stderr that holds each of `parts`.
inline void expect_refusal(const Finished& result, int code, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.code, code);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(lines(result.err), 1) << result.err;
  EXPECT_THAT(result.err, testing::StartsWith("moesaic: "));
  for (const std::string& part : parts) EXPECT_THAT(result.err, testing::HasSubstr(part));
}

}  // namespace moesaic
