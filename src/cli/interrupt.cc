#include "cli/interrupt.h"

#include <semaphore.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

namespace moesaic {
namespace {

// A signal handler has nothing but globals. Posting a semaphore is all that it may do to wake a thread.
sem_t wake;
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_interrupt(int) {
  std::signal(SIGINT, SIG_DFL);
  interrupted = true;
  sem_post(&wake);
}

void clear_line(int) {
  constexpr std::string_view kClear = "\r\033[K";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kClear.data(), kClear.size());
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);  // ends the program once this handler returns
}

}  // namespace

InterruptGuard::InterruptGuard(std::function<void()> action) {
  interrupted = false;
  sem_init(&wake, 0, 0);
  waiter_ = std::thread([run = std::move(action)] {
    while (sem_wait(&wake) != 0) {
    }
    if (interrupted) run();
  });
  previous_ = std::signal(SIGINT, on_interrupt);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, previous_);
  sem_post(&wake);
  waiter_.join();
  sem_destroy(&wake);
}

void clear_line_on_interrupt() {
  if (isatty(STDERR_FILENO) != 0) std::signal(SIGINT, clear_line);
}

}  // namespace moesaic
