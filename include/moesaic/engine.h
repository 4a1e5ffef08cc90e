// The public API: open a model, submit requests, read completions. Kernels, graphs and scheduling stay behind it.
//
//   moesaic::Engine engine = moesaic::Engine::open({.model = "models/demo"});  // throws std::runtime_error
//   auto run = engine.submit({.tokens = engine.tokenizer().encode("Once upon a time")});
//   if (!run.ok()) return std::fprintf(stderr, "%s\n", run.status().message()), 1;
//   while (auto chunk = run->next()) std::fputs(chunk->text.c_str(), stdout);
//   if (!run->status().ok()) return 1;  // cancelled, failed
//
// An Engine and its Tokenizer may be used from any number of threads; a Completion from one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/sampling.h"
#include "moesaic/status.h"

namespace moesaic {

struct EngineOptions {
  std::string model = {};                // a directory in Hugging Face's layout, or a name in its local cache
  std::string device = "auto";           // auto, cpu; ref is the float64 reference
  std::string precision = "fast";        // fast, fp8: rounded inputs of products (docs/numerics.md); float32: exact
  std::string kv_cache_dtype = "auto";   // f32 (auto) or bf16: half the memory, keys and values rounded
  int threads = 0;                       // 0: one per available core
  bool dummy_weights = false;            // random weights; only config.json is read
  int64_t max_model_len = 0;             // longest sequence; 0: what the model allows, at most 8192
  int64_t max_num_seqs = 16;             // sequences in flight; more wait
  int64_t max_num_batched_tokens = 512;  // prompt tokens of one step
  int64_t max_queue = 1024;              // requests waiting; more are refused with resource_exhausted
  int64_t kv_cache_tokens = 0;           // size of the key-value cache; 0: enough for max_num_seqs at max_model_len
  // Tokens that the model's multi-token prediction layer drafts at a time, 0 to 16; 0: the layer is not loaded. Greedy
  // answers are the same tokens with and without; sampled ones have the same distribution, but other draws.
  int64_t num_speculative_tokens = 0;
  bool progress = false;  // a progress bar on stderr while loading
  // Called while the weights load, from the loading thread, with bytes done and bytes in all.
  std::function<void(int64_t done, int64_t total)> on_load = {};

  bool prefix_caching = true;  // blocks of earlier prompts and answers are used again
  // preempt: a sequence is admitted when its prompt fits, and the youngest is computed anew later when memory runs
  // short; worst_case: it is admitted when prompt and answer fit, and never preempted.
  std::string admission = "preempt";
  std::string schedule_policy = "fcfs";  // fcfs, or priority: lower Request::priority first
  int64_t prefix_cache_slots = 0;        // snapshots of recurrent state and rings kept for reuse; 0: 2 * max_num_seqs
  int64_t host_cache_bytes = 0;          // host memory for cache blocks that leave the device
};

class Grammar;  // a compiled constraint on the text of an answer

// What an answer must be: text is a JSON schema, a regular expression, a grammar (docs/grammars.md), or unused.
struct GrammarSource {
  enum class Kind : uint8_t { json_object, json_schema, regex, grammar };
  Kind kind = Kind::json_object;
  std::string text = {};
};

struct Request {
  std::vector<int32_t> tokens = {};  // the prompt; at least one
  // JPEG, PNG or WebP files, byte for byte. The prompt holds one image token (EngineInfo::image_token) for each, in
  // order; where it holds none, the images come first.
  std::vector<std::string> images = {};
  SamplingParams sampling = {};
  int64_t max_new_tokens = 0;          // 0: up to the context length or the cache's size
  std::vector<std::string> stop = {};  // the text ends before the first of these
  std::vector<int32_t> stop_token_ids = {};
  bool ignore_eos = false;
  int64_t min_tokens = 0;           // before these many, tokens that end the answer are not chosen
  bool include_stop = false;        // the stop string is part of the text
  bool skip_special_tokens = true;  // in the text
  // The prompt came from encode_chat(): the answer's format (harmony, for example) is parsed, so that text is what the
  // user should read, and reasoning and tool calls come apart.
  bool chat = false;
  std::string tools = {};  // JSON array of the tools offered to a chat; its answer's calls are parsed by their schemas

  std::shared_ptr<const Grammar> grammar = {};  // from Engine::compile(): only tokens that it allows are chosen
  uint32_t choice = 0;          // number of this answer among several to one prompt: each draws differently
  int prompt_logprobs = -1;     // alternatives wanted for each token of the prompt, 0 to kMaxLogprobs; -1: none
  bool score_only = false;      // nothing is generated: for prompt_logprobs
  int64_t priority = 0;         // lower comes first, with EngineOptions::schedule_policy priority
  std::string user = {};        // requests of one user wait in one line; lines take turns
  std::string cache_salt = {};  // a prefix is shared only among requests with the same salt
  // The request fails with deadline_exceeded when its first token is not there by then; none: it waits for ever.
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
};

struct GeneratedToken {
  int32_t id = -1;
  float logprob = 0;  // natural logarithm, before temperature and penalties
  float gap = 0;      // between the two best logits as they were chosen from; a small one is a near-tie
  std::vector<std::pair<int32_t, float>> top = {};  // as many as sampling.logprobs asks for, best first
  bool markup = false;  // of a chat: no part of what is said, but of a marker or of the name of a channel or tool
};

// What a step added to a call of a tool. `id` and `name` come with the first delta of each index, `arguments` in
// pieces.
struct ToolCallDelta {
  int index = 0;  // of the call in the answer
  std::string id = {}, name = {};
  std::string arguments = {};

  bool operator==(const ToolCallDelta&) const = default;
};

// What one step of the engine added. `text` holds whole characters only and may lag behind `tokens`.
struct Chunk {
  std::string text = {};
  std::string reasoning = {};  // of a chat whose model thinks aloud
  std::vector<ToolCallDelta> tool_calls = {};
  std::vector<GeneratedToken> tokens = {};
  // With Request::prompt_logprobs, once, before the first token: one entry for each prompt token but the first.
  std::vector<GeneratedToken> prompt = {};
};

enum class FinishReason : uint8_t { none, stop, length, cancelled, error };

// Which of the request's stop strings or stop_token_ids ended the answer; neither for the model's own end.
struct StopMatch {
  std::optional<std::string> text = {};
  std::optional<int32_t> token = {};
};

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;       // of the prompt, found in the prefix cache
  int64_t reasoning_tokens = 0;    // of the answer
  double queue_seconds = 0;        // until the first prompt token was computed
  double first_token_seconds = 0;  // from submit to the first token
  double total_seconds = 0;
  // With speculation: steps that verified drafts, the tokens drafted for them, and those of them the model accepted.
  int64_t draft_steps = 0, draft_tokens = 0, accepted_draft_tokens = 0;
};

class CompletionStream;  // what the engine's thread fills

// The answer to one request. Dropping it cancels the request.
class Completion {
 public:
  explicit Completion(std::shared_ptr<CompletionStream> stream) : stream_(std::move(stream)) {}
  Completion(Completion&&) = default;
  Completion& operator=(Completion&& other) noexcept;
  ~Completion();

  // Blocks until there is more; nothing when the completion has ended.
  std::optional<Chunk> next();
  // The same without waiting: nothing may also mean "not yet", which ended() tells apart.
  std::optional<Chunk> try_next();
  bool ended() const;
  // Calls `ready` from the engine's thread whenever there may be more, or the end; at once if there is already. It must
  // be quick, must not call the engine, and must not throw; the last call may come after next() has returned nothing.
  void on_ready(std::function<void()> ready);
  void cancel();

  // Valid once next() has returned nothing.
  const Status& status() const;
  FinishReason finish_reason() const;
  const StopMatch& stop_match() const;
  Usage usage() const;

 private:
  std::shared_ptr<CompletionStream> stream_;
};

// The model's tokenizer and chat template.
class EngineTokenizer {
 public:
  explicit EngineTokenizer(std::shared_ptr<const struct TextFiles> files) : files_(std::move(files)) {}

  // Names of special tokens in `text` become those tokens, as in a prompt written by hand.
  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(std::span<const int32_t> tokens, bool skip_special_tokens = false) const;
  // Renders `messages` (JSON: [{"role": "user", "content": "..."}, ...]) with the model's chat template, ready for the
  // assistant's answer. Text of messages never becomes a special token.
  Result<std::vector<int32_t>> encode_chat(std::string_view messages_json) const;
  bool has_chat_template() const;
  const TextFiles& files() const { return *files_; }

 private:
  std::shared_ptr<const TextFiles> files_;
};

struct EngineInfo {
  std::string family, device;
  int64_t max_model_len = 0, vocab = 0;
  int32_t image_token = -1;  // -1: the model sees no images
  int64_t weight_bytes = 0, cache_bytes = 0, activation_bytes = 0, workspace_bytes = 0;
  SamplingParams default_sampling = {};  // generation_config.json's
};

// A snapshot of what the engine does and has done since it was opened.
struct EngineStats {
  int64_t running = 0, waiting = 0;     // requests
  int64_t blocks = 0, blocks_used = 0;  // of the cache, of kBlockTokens tokens; used by running requests
  int64_t blocks_cached = 0;            // kept for reuse, free to take
  int64_t slots = 0, slots_used = 0;    // of recurrent state and rings
  int64_t host_blocks = 0, host_blocks_used = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  // tokens of prompts, and those of them found in the prefix cache
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t finished_stop = 0, finished_length = 0, finished_cancelled = 0, finished_error = 0;
  int64_t draft_steps = 0, draft_tokens = 0, accepted_draft_tokens = 0;
  int64_t prefill_steps = 0, decode_steps = 0;
  double prefill_seconds = 0, decode_seconds = 0;  // of those steps
  int64_t step_tokens = 0;                         // of the last step
  int64_t masks = 0, masks_late = 0;               // grammar masks made, and those that sampling had to wait for
  double mask_seconds = 0;
  double seconds_since_step = 0;            // or since the engine's thread last looked for work
  std::vector<int64_t> expert_tokens = {};  // [layers with experts, experts], where the engine counts them
  int64_t experts = 0;
};

class Engine {
 public:
  // Loads the model and starts the engine's thread. Throws std::runtime_error with one line that says what is wrong.
  static Engine open(const EngineOptions& options);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();  // cancels what is in flight

  const EngineTokenizer& tokenizer() const;
  const EngineInfo& info() const;
  // Refuses, with a Status that names the field and both numbers, what can never run: an empty prompt, one longer than
  // the context or the cache, parameters out of range.
  Result<Completion> submit(Request request);

  // invalid_argument for a schema, expression or grammar that is malformed, unsupported or too large.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source) const;

  EngineStats stats() const;
  // Drops what the prefix cache keeps; unavailable while requests run.
  Status clear_prefix_cache();

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
