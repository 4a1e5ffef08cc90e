// Scheduler: which sequences run. It keeps the line of those that wait, admits what fits, and takes memory from the
// youngest when the others need it. The engine thread owns it; it never touches cache memory.
//
// Order of admission: lower priority numbers first (with SchedulerOptions::priorities), then those that were preempted,
// then the user that was served least, then first come, first served. If the first in line does not fit, nobody behind
// it is tried, so that a long prompt cannot starve.
#pragma once

#include <list>
#include <map>
#include <string>

#include "engine/sequence_memory.h"

namespace moesaic {

struct SchedulerOptions {
  int64_t max_running = 16;
  bool worst_case = false;  // admit when prompt and answer fit; then nothing is ever preempted
  bool priorities = false;
  int64_t lookahead = 0;  // tokens after the next one that a step may touch: drafts
};

class Scheduler {
 public:
  // `memory` outlives it.
  Scheduler(SequenceMemory& memory, const SchedulerOptions& options) : memory_(memory), options_(options) {}

  void enqueue(std::list<Sequence>&& sequences);
  void admit();

  // In order of admission.
  std::list<Sequence>& running() { return running_; }
  std::list<Sequence>& waiting() { return waiting_; }

  // Of those that run, the one to lose its memory first: the least urgent, then the youngest.
  Sequence& youngest();
  // Takes the sequence's memory and puts it back in line. Nothing of it may be in flight.
  void preempt(Sequence& sequence);
  // Counts work for a sequence's user.
  void charge(const Sequence& sequence, int64_t tokens);
  // The sequence has ended: its user may have nothing left here.
  void leave(const Sequence& sequence);

  int64_t preemptions() const { return preemptions_; }

 private:
  struct User {
    int64_t requests = 0;  // waiting and running
    int64_t served = 0;    // tokens, since before they were equal
  };
  using Place = std::list<Sequence>::iterator;

  // Forgets users who have left and are not ahead of it.
  int64_t least_served();
  bool before(const Sequence& a, const Sequence& b) const;
  int64_t priority(const Sequence& s) const { return options_.priorities ? s.request.priority : 0; }
  Place first_in_line();

  SequenceMemory& memory_;
  const SchedulerOptions options_;
  std::list<Sequence> running_, waiting_;
  std::map<std::string, User> users_;
  int64_t preemptions_ = 0;
};

}  // namespace moesaic
