#include "engine/scheduler.h"

#include <algorithm>
#include <ranges>
#include <tuple>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr size_t kMostUsers = 4096;  // remembered when they have left

}  // namespace

// A user who comes (back) starts where the least served of the others is: idle time earns nothing. One who was served
// more than that is still ahead: leaving for a moment forgives nothing.
void Scheduler::enqueue(std::list<Sequence>&& sequences) {
  for (Sequence& s : sequences) {
    const int64_t least = least_served();
    User& user = users_[s.request.user];
    if (user.requests++ == 0) user.served = std::max(user.served, least);
  }
  waiting_.splice(waiting_.end(), sequences);
}

// Of those who have requests here; with nobody here, nobody is ahead.
int64_t Scheduler::least_served() {
  const auto present = [](const auto& entry) { return entry.second.requests > 0; };
  const auto served = [](const auto& entry) { return entry.second.served; };
  auto here = users_ | std::views::filter(present);
  const auto least = std::ranges::min_element(here, {}, served);
  if (least == here.end()) return users_.clear(), 0;
  const int64_t count = served(*least);
  std::erase_if(users_, [&](const auto& entry) { return !present(entry) && served(entry) <= count; });
  return count;
}

void Scheduler::leave(const Sequence& s) {
  const auto user = users_.find(s.request.user);
  if (--user->second.requests == 0 && users_.size() > kMostUsers) users_.erase(user);
}

void Scheduler::charge(const Sequence& s, int64_t tokens) {
  users_[s.request.user].served += tokens;
}

bool Scheduler::before(const Sequence& a, const Sequence& b) const {
  const auto rank = [&](const Sequence& s) {
    const auto user = users_.find(s.request.user);
    return std::tuple(priority(s), !s.preempted, user != users_.end() ? user->second.served : 0, s.arrival);
  };
  return rank(a) < rank(b);
}

Scheduler::Place Scheduler::first_in_line() {
  Place best = waiting_.end();
  for (Place s = waiting_.begin(); s != waiting_.end(); ++s)
    if (!s->held && (best == waiting_.end() || before(*s, *best))) best = s;
  return best;
}

void Scheduler::admit() {
  for (Sequence& s : waiting_) s.held = false;
  while (std::ssize(running_) < options_.max_running) {
    const Place next = first_in_line();
    if (next == waiting_.end()) return;
    const int64_t soon = std::min(next->length() + 1 + options_.lookahead, next->worst_case_tokens());
    const int64_t tokens = options_.worst_case ? next->worst_case_tokens() : soon;
    const int64_t spare = options_.worst_case ? 0 : std::ssize(running_);
    const auto opened = memory_.open(*next, tokens, spare);
    if (opened == SequenceMemory::Opened::full) return;
    next->held = opened == SequenceMemory::Opened::waits_for_a_prefix;
    if (next->held) continue;
    if (!next->preempted) {
      next->started = Clock::now();
      next->usage.cached_tokens = std::min(next->cache.length, next->prompt_tokens);
    }
    charge(*next, next->pending());
    running_.splice(running_.end(), waiting_, next);
  }
}

Sequence& Scheduler::youngest() {
  CHECK(!running_.empty());
  const auto later = [&](const Sequence& a, const Sequence& b) {
    return std::tuple(a.cache.slot >= 0, priority(a), a.arrival) <
           std::tuple(b.cache.slot >= 0, priority(b), b.arrival);
  };
  return *std::ranges::max_element(running_, later);
}

void Scheduler::preempt(Sequence& s) {
  CHECK(s.in_flight == 0 && s.cache.slot >= 0, "{} tokens in flight", s.in_flight);
  const auto place = std::ranges::find_if(running_, [&](const Sequence& other) { return &other == &s; });
  CHECK(place != running_.end());
  memory_.close(s);
  s.drafts.clear();
  if (s.generated() == 0) s.prompt_scores.clear();
  s.preempted = true;
  ++preemptions_;
  waiting_.splice(waiting_.begin(), running_, place);
}

}  // namespace moesaic
