// Taps: the named values of one forward pass, copied to the host as float64, for `moesaic diff` and tests.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/loaded_model.h"

namespace moesaic {

struct Tap {
  std::vector<int64_t> shape;  // as in the plan: [T or S, ...]
  std::vector<double> values;
};

// In order of execution: what a router or an index selection chose for each token (sorted), that an op let tokens of a
// sequence see earlier ones, that a value got a name.
struct ForwardEvent {
  enum class Kind : uint8_t { choice, mix, named };
  Kind kind;
  std::vector<std::vector<int32_t>> chosen;
};

struct Forward {
  std::vector<ForwardEvent> events;
  std::vector<std::pair<std::string, Tap>> named;  // hidden.0 .. hidden.L, logits; in order of execution
  std::vector<std::pair<std::string, Tap>> ops;    // every op's first output by label, when asked for
};

// Runs `input_ids` [B, T] as B sequences in one prefill step, every row with logits. The model must have been loaded
// with limits that allow it (tokens and rows B * T, sequences B). `image_rows` [*, hidden] replace, in order, the
// embeddings of the model's image tokens; there must be as many.
Forward forward(LoadedModel& loaded, const std::vector<std::vector<int32_t>>& input_ids, bool every_op = false,
                std::span<const float> image_rows = {});

// Of two runs of one graph, for each named value the rows [B * T] that rest on different choices: a token whose experts
// or entries differ, and from the next op on that mixes tokens those after it in its sequence. Where scores are rounded
// differently a near-tie may fall either way, and such rows say nothing about the rounding.
std::vector<std::vector<bool>> diverged_rows(const Forward& a, const Forward& b, int64_t tokens_each);

// `values` [rows, *] without the rows that are left out.
std::vector<double> rows_without(const std::vector<double>& values, const std::vector<bool>& left_out);

// How clearly one index_topk chose: for each token, the least chosen score less the best one left out, divided by the
// largest absolute score; infinity where it chose all. At 0 which entry is chosen is open, and near it rounding
// decides.
struct IndexGaps {
  std::string label;
  std::vector<double> of_token;
};

// Of each index_topk (without hashes) that runs after the first `named` values of forward() and before the next one.
// Runs the model again; the arguments are those of forward().
std::vector<IndexGaps> index_gaps(LoadedModel& loaded, const std::vector<std::vector<int32_t>>& input_ids, size_t named,
                                  std::span<const float> image_rows = {});

// LoadOptions with just these limits.
LoadOptions forward_limits(LoadOptions options, int64_t sequences, int64_t tokens_each);

}  // namespace moesaic
