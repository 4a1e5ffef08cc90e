// InterruptGuard: while it lives, Ctrl-C sets a flag instead of ending the program; a second one ends it.
#pragma once

#include <csignal>

namespace moesaic {

class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  bool requested() const;

 private:
  void (*previous_)(int);
};

}  // namespace moesaic
