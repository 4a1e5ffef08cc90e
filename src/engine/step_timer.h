// StepTimer: what the steps of a plan did and how long they took, by kind of op. For `moesaic bench`.
#pragma once

#include <array>
#include <memory>
#include <string>
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

// The work of a step that just ran on `device`, for which it waits. Weights are read once per step, each cache entry
// that a sequence's tokens see once per sequence. Multiply-adds are 2 operations.
Work step_work(Device& device, const Step& step, const Args& args);

class StepTimer {
 public:
  // `count`: the work too. On a GPU that waits for every step, so its times say little; without it nothing waits.
  explicit StepTimer(Device& device, bool count = true);

  struct Row {
    Op op = Op::embed;
    int64_t calls = 0;
    double seconds = 0;
    Work work;
  };

  // Right before a step, whose hook calls record() after each of its launches.
  void start();
  void record(const Step& step, const Args& args);

  std::vector<Row> rows() const;  // of the ops that ran, slowest first; waits for the device
  Work total() const;
  Work work_of(Op op) const { return work_[static_cast<size_t>(op)]; }
  // Every launch in order: what, when since the first start(), for how long; for traces. Waits for the device.
  struct Span {
    std::string label;
    Op op;
    double start = 0, seconds = 0;
  };
  std::vector<Span> spans() const;

 private:
  void mark();

  Device& device_;
  const bool count_;
  std::array<Work, kOpCount> work_;
  std::vector<std::unique_ptr<Mark>> marks_;
  struct Launch {
    std::string label;
    Op op;
    size_t end;  // mark; it began at the one before
  };
  std::vector<Launch> launches_;
};

}  // namespace moesaic
