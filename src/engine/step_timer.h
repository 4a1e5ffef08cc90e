// StepTimer: what the steps of a plan did and how long they took, by kind of op. For `moesaic bench`.
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "runtime/run.h"

namespace moesaic {

// Work counted from a step's batch and its routing, where op_cost only knows its shapes: attention counts the positions
// that its tokens see, experts those that were reached.
struct Work {
  double weight_bytes = 0, cache_bytes = 0, activation_bytes = 0, flops = 0;
  int64_t routings = 0, experts_reached = 0;  // layers that routed, and the distinct experts of each, summed

  Work& operator+=(const Work& other);
  double read_bytes() const { return weight_bytes + cache_bytes; }
};

// The work of a step that just ran. Weights are read once per step, each cache entry that a sequence's tokens see once
// per sequence. Multiply-adds are 2 operations.
Work step_work(const Step& step, const Args& args);

class StepTimer {
 public:
  struct Row {
    Op op = Op::embed;
    int64_t calls = 0;
    double seconds = 0;
    Work work;
  };

  // Right before run(), whose hook calls record() after each step.
  void start() { last_ = Clock::now(); }
  void record(const Step& step, const Args& args);

  std::vector<Row> rows() const;  // of the ops that ran, slowest first
  Work total() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::array<Row, kOpCount> rows_;
  Clock::time_point last_;
};

}  // namespace moesaic
