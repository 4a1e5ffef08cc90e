// Sequence: a request that was admitted, with everything it remembers between steps.
#pragma once

#include <atomic>
#include <chrono>
#include <set>

#include "cache/cache_pool.h"
#include "cache/prefix_key.h"
#include "engine/completion_stream.h"
#include "engine/sampler.h"
#include "grammar/grammar.h"
#include "media/patches.h"
#include "text/chat_format.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace moesaic {

using Clock = std::chrono::steady_clock;

// What all sequences of an engine share; it outlives them.
struct SequenceWorld {
  const Tokenizer* tokenizer = nullptr;         // null: the model has none, and its sequences no text
  ChatFormat chat_format = ChatFormat::plain;   // of its answers
  const TokenVocabulary* vocabulary = nullptr;  // for grammars; null without a tokenizer
  int64_t valid_vocab = 0;
  std::vector<int32_t> eos;  // end a sequence unless its request ignores them
};

enum class MaskState : uint8_t { none, wanted, begun, ready };

struct Sequence {
  Sequence(Request request, std::shared_ptr<CompletionStream> out, const SequenceWorld& world);

  Request request;
  std::shared_ptr<CompletionStream> stream;
  std::vector<int32_t> tokens;  // prompt and output
  int64_t prompt_tokens;
  SequenceCache cache;  // cache.length tokens are computed
  SamplerState sampler;
  std::optional<Detokenizer> detokenizer;  // none where the model has no tokenizer, or where `parser` does its work
  std::optional<GrammarMatcher> matcher;   // of an answer that follows a grammar
  std::vector<uint32_t> mask;              // tokens that the matcher allows next
  std::atomic<MaskState> mask_state{MaskState::none};
  std::optional<AnswerParser> parser;  // of a chat's answer
  StopStrings stop_strings;
  Clock::time_point submitted, started, first_token;
  std::vector<PatchedImage> images;  // that the vision tower has yet to see
  std::vector<float> image_rows;     // [image tokens of the prompt, hidden]
  std::vector<const float*> row_of;  // of each token of the prompt, null for text; empty without images
  std::vector<DraftToken> drafts;    // guesses of the tokens after the last, for the next step to verify
  int64_t in_flight = 0;             // tokens sampled on a GPU that have not been read yet
  Usage usage;                       // what it counted of drafts and cached tokens so far
  const SequenceWorld& world;
  std::vector<int32_t> ending;  // tokens that end the answer
  StopMatch stop_match;
  int64_t arrival = 0;     // number of the request, in the order of submission
  bool ended = false;      // its stream is finished
  bool held = false;       // it waits for a prefix that another computes
  bool preempted = false;  // it ran and waits to run again
  std::vector<GeneratedToken> prompt_scores;

  // Of its cache, for SequenceMemory.
  BlockKey root;
  std::vector<BlockKey> keys;  // of its full blocks, as far as computed
  std::vector<MediaRange> media;
  int64_t published = 0;         // blocks that others can find
  std::set<int64_t> stops;       // lengths at which the state is kept
  SlotId pending_snapshot = -1;  // holds the state at pending_length, whose tokens are not all known yet
  int64_t pending_length = 0;
  int64_t generated_snapshot = 0;  // blocks before the state that was kept last while generating

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t pending() const { return length() - cache.length; }  // tokens to compute before the next can be sampled
  int64_t generated() const { return length() - prompt_tokens; }
  // The next step computes one token, its last, and samples. A preempted sequence first computes what it had.
  bool decoding() const { return in_flight > 0 || (generated() > 0 && pending() == 1); }
  bool scoring() const { return request.prompt_logprobs >= 0 && generated() + in_flight == 0; }
  // Whether the sampled tokens, those in flight included, leave room for another.
  bool may_generate() const { return generated() + in_flight < request.max_new_tokens; }
  // What the device cannot do: biases, penalties, lists of log-probabilities, filters.
  bool sampled_by_host() const;
  // Some tokens may not be chosen next.
  bool filtered() const { return matcher.has_value() || generated() < request.min_tokens; }
  TokenFilter filter() const;
  int64_t worst_case_tokens() const { return prompt_tokens + request.max_new_tokens; }

  // The last token and the drafts after it, which a step computes together.
  std::span<const int32_t> last_and_drafts(std::vector<int32_t>& buffer) const;

  // The step has verified the drafts and accepted so many: counts them and forgets them.
  void count_drafts(int64_t accepted);

  // Takes a sampled token (the sampler has counted it): extends the output, sends text and tokens; true when the
  // sequence has ended, with `reason`.
  bool accept(const SampledToken& token, FinishReason& reason);
  // What the prompt's token at `position` (from 1 on) would have scored.
  void score_prompt(std::span<const float> logits, int64_t position);
  bool release_text(const std::string& content, bool last, std::string& out);
  // Whether the token ends the answer.
  bool ends(int32_t token) const;
  // Text that a token (or, at the end, none) makes complete.
  AnswerDelta text_of(int32_t token, bool visible, bool last);
  void finish(Status status, FinishReason reason);

  // Gives the prompt's image tokens their rows, once image_rows is complete.
  void place_image_rows(int32_t placeholder, int64_t hidden);
  // As Batch::add takes them, for tokens [start, start + count) of the prompt.
  std::span<const float* const> image_rows_of(int64_t start, int64_t count) const;
};

}  // namespace moesaic
