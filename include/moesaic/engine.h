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

#include <cstdint>
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
};

struct Request {
  std::vector<int32_t> tokens = {};  // the prompt; at least one
  // JPEG, PNG or WebP files, byte for byte. The prompt holds one image token (EngineInfo::image_token) for each, in
  // order; where it holds none, the images come first.
  std::vector<std::string> images = {};
  SamplingParams sampling = {};
  int64_t max_new_tokens = 0;          // 0: up to the context length
  std::vector<std::string> stop = {};  // the text ends before the first of these
  std::vector<int32_t> stop_token_ids = {};
  bool ignore_eos = false;
  bool skip_special_tokens = true;  // in the text
  // The prompt came from encode_chat(): the answer's format (harmony) is parsed, so that text is what the user should
  // read and reasoning comes apart.
  bool chat = false;
};

struct GeneratedToken {
  int32_t id = -1;
  float logprob = 0;  // natural logarithm, before temperature and penalties
  float gap = 0;      // between the two best logits as they were chosen from; a small one is a near-tie
  std::vector<std::pair<int32_t, float>> top = {};  // as many as sampling.logprobs asks for, best first
};

// What one step of the engine added. `text` holds whole characters only and may lag behind `tokens`.
struct Chunk {
  std::string text;
  std::string reasoning = {};  // of a chat whose model thinks aloud
  std::vector<GeneratedToken> tokens;
};

enum class FinishReason : uint8_t { none, stop, length, cancelled, error };

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0;
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
  void cancel();

  // Valid once next() has returned nothing.
  const Status& status() const;
  FinishReason finish_reason() const;
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

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace moesaic
