// Sequence: a request that was admitted, with everything it remembers between steps.
#pragma once

#include <chrono>

#include "cache/cache_pool.h"
#include "engine/completion_stream.h"
#include "engine/sampler.h"
#include "media/patches.h"
#include "text/detokenizer.h"
#include "text/harmony.h"
#include "text/stop_strings.h"

namespace moesaic {

using Clock = std::chrono::steady_clock;

struct Sequence {
  Sequence(Request request, std::shared_ptr<CompletionStream> out, const Tokenizer* tokenizer, int64_t valid_vocab);

  Request request;
  std::shared_ptr<CompletionStream> stream;
  std::vector<int32_t> tokens;  // prompt and output
  int64_t prompt_tokens;
  SequenceCache cache;  // cache.length tokens are computed
  SamplerState sampler;
  std::optional<Detokenizer> detokenizer;  // none where the model has no tokenizer, or where `parser` does its work
  std::optional<HarmonyParser> parser;     // of a chat's answer
  StopStrings stops;
  Clock::time_point submitted, started, first_token;
  std::vector<PatchedImage> images;  // that the vision tower has yet to see
  std::vector<float> image_rows;     // [image tokens of the prompt, hidden]
  std::vector<const float*> row_of;  // of each token of the prompt, null for text; empty without images
  std::vector<DraftToken> drafts;    // guesses of the tokens after the last, for the next step to verify
  int64_t in_flight = 0;             // tokens sampled on a GPU that have not been read yet
  Usage usage;                       // what it counted of drafts so far

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t pending() const { return length() - cache.length; }  // tokens to compute before the next can be sampled
  int64_t generated() const { return length() - prompt_tokens; }
  bool decoding() const { return generated() + in_flight > 0; }
  // Whether the sampled tokens, those in flight included, leave room for another.
  bool may_generate() const { return generated() + in_flight < request.max_new_tokens; }
  // What the device cannot do: biases, penalties, lists of log-probabilities.
  bool sampled_by_host() const;
  int64_t worst_case_tokens() const { return prompt_tokens + request.max_new_tokens; }

  // The last token and the drafts after it, which a step computes together.
  std::span<const int32_t> last_and_drafts(std::vector<int32_t>& buffer) const;

  // The step has verified the drafts and accepted so many: counts them and forgets them.
  void count_drafts(int64_t accepted);

  // Takes a sampled token (the sampler has counted it): extends the output, sends text and tokens; true when the
  // sequence has ended, with `reason`.
  bool accept(const SampledToken& token, std::span<const int32_t> eos, FinishReason& reason);
  // Text that a token (or, at the end, none) makes complete.
  HarmonyParser::Delta text_of(int32_t token, bool visible, bool ended);
  void finish(Status status, FinishReason reason);

  // Gives the prompt's image tokens their rows, once image_rows is complete.
  void place_image_rows(int32_t placeholder, int64_t hidden);
  // As Batch::add takes them, for tokens [start, start + count) of the prompt.
  std::span<const float* const> image_rows_of(int64_t start, int64_t count) const;
};

}  // namespace moesaic
