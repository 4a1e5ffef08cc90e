// Ctrl-C: stopping what runs, and leaving the terminal tidy.
#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace moesaic {

// While it lives, the first Ctrl-C runs an action, on a thread of its own, instead of ending the program; a second one
// ends it. One at a time.
class InterruptGuard {
 public:
  explicit InterruptGuard(std::function<void()> action);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  void (*previous_)(int);
  std::thread waiter_;
};

// Where no guard lives, Ctrl-C first removes a half-drawn line (a progress bar) from the terminal.
void clear_line_on_interrupt();

}  // namespace moesaic
