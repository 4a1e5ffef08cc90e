#include "moesaic/engine.h"

#include <algorithm>
#include <set>

#include "engine/engine_loop.h"
#include "engine/generation_config.h"
#include "engine/grammar_cache.h"
#include "engine/image_prompt.h"
#include "engine/load_options.h"
#include "engine/sampling_check.h"
#include "engine/text_files.h"

namespace moesaic {

struct Engine::State {
  LoadedModel model;
  std::shared_ptr<TextFiles> text;
  std::optional<EngineTokenizer> tokenizer;
  EngineInfo info;
  PatchOptions patches;  // of a model that sees images
  std::optional<TokenVocabulary> vocabulary;
  GrammarCache grammars;
  std::optional<EngineLoop> loop;  // last: it stops before what it uses goes
};

namespace {

// generation_config.json's list, else config.json's; and, by name, the tokens that end a turn in the family's format.
std::vector<int32_t> stop_tokens(const GenerationConfig& generation, const Model& model, const Tokenizer* tokenizer) {
  const auto& listed = generation.eos_token_ids.empty() ? model.stop_tokens : generation.eos_token_ids;
  std::set<int32_t> ids(listed.begin(), listed.end());
  for (const std::string& name : model.stop_names)
    if (const auto id = tokenizer != nullptr ? tokenizer->token_to_id(name) : std::nullopt) ids.insert(*id);
  return {ids.begin(), ids.end()};
}

EngineInfo describe(const LoadedModel& model, const GenerationConfig& generation) {
  return {.family = model.model.family,
          .device = model.device->info().name,
          .max_model_len = model.max_model_len,
          .vocab = model.model.vocab,
          .image_token = model.model.vision ? model.model.vision->placeholder : -1,
          .weight_bytes = model.weights.bytes() + (model.draft ? model.draft->weights().bytes() : 0),
          .cache_bytes =
              model.cache_blocks.bytes() + model.cache_slots.bytes() + (model.draft ? model.draft->cache_bytes() : 0),
          .activation_bytes = model.activations.bytes(),
          .workspace_bytes = model.workspace.bytes(),
          .default_sampling = generation.sampling};
}

SchedulerOptions scheduler_options(const EngineOptions& options) {
  if (options.admission != "preempt" && options.admission != "worst_case")
    fail_argument("admission \"{}\" is unknown; expected preempt or worst_case", options.admission);
  if (options.schedule_policy != "fcfs" && options.schedule_policy != "priority")
    fail_argument("schedule policy \"{}\" is unknown; expected fcfs or priority", options.schedule_policy);
  return {.max_running = options.max_num_seqs,
          .worst_case = options.admission == "worst_case",
          .priorities = options.schedule_policy == "priority",
          .lookahead = options.num_speculative_tokens};
}

ReuseOptions reuse_options(const EngineOptions& options) {
  return {.prefixes = options.prefix_caching && options.num_speculative_tokens == 0,
          .host_bytes = options.host_cache_bytes};
}

// MOESAIC_FAULTS=3,7: the third and the seventh step fail. For tests of what a failed step costs.
std::set<int64_t> faults() {
  std::set<int64_t> steps;
  const char* text = std::getenv("MOESAIC_FAULTS");
  while (text != nullptr && *text != '\0') {
    char* end = nullptr;
    steps.insert(std::strtoll(text, &end, 10));
    text = *end == ',' ? end + 1 : nullptr;
  }
  return steps;
}

Status invalid(std::string param, std::string message) {
  return {StatusCode::invalid_argument, std::move(message), std::move(param)};
}

Status check_tokens(const Request& request, int64_t vocab) {
  const auto check = [&](const std::vector<int32_t>& ids, const char* param) -> Status {
    for (int32_t id : ids)
      if (id < 0 || id >= vocab)
        return invalid(param, fmt::format("{} holds {}; expected token ids from 0 to {}", param, id, vocab - 1));
    return {};
  };
  if (Status status = check(request.tokens, "tokens"); !status.ok()) return status;
  return check(request.stop_token_ids, "stop_token_ids");
}

Status check_tools(const Request& request) {
  if (request.tools.empty()) return {};
  try {
    if (parse_json(request.tools, "tools").is_array()) return {};
    return invalid("tools", "tools is not a JSON array");
  } catch (const Error& error) {
    return invalid("tools", error.what());
  }
}

Status check_cache(int64_t prompt, int64_t generated, int64_t cache) {
  if (prompt + generated <= cache) return {};
  const bool prompt_fits = prompt + std::min<int64_t>(generated, 1) <= cache;
  return invalid(prompt_fits ? "max_new_tokens" : "tokens",
                 fmt::format("prompt and answer may take {} tokens, and the whole key-value cache holds {}; {} or "
                             "enlarge the cache",
                             prompt + generated, cache, prompt_fits ? "lower max_new_tokens" : "shorten the prompt"));
}

// The prompt and what it may generate fit the context and, alone, the cache; fills in max_new_tokens where it is 0.
Status check_lengths(Request& request, int64_t limit, int64_t cache) {
  const auto prompt = static_cast<int64_t>(request.tokens.size());
  if (prompt == 0) return invalid("tokens", "the prompt has no tokens; expected at least one");
  if (request.score_only ? prompt > limit : prompt >= limit)
    return invalid("tokens",
                   fmt::format("the prompt has {} tokens, and this model's maximum context length is {} tokens, "
                               "one of which must be left to generate; shorten the prompt",
                               prompt, limit));
  if (request.score_only) {
    if (request.prompt_logprobs < 0)
      return invalid("prompt_logprobs", "nothing is generated, and prompt_logprobs is not set: nothing is left to do");
    request.max_new_tokens = 0;
    return check_cache(prompt, 0, cache);
  }
  if (request.max_new_tokens < 0)
    return invalid("max_new_tokens", fmt::format("max_new_tokens is {}; expected 1 or more", request.max_new_tokens));
  if (prompt + request.max_new_tokens > limit)
    return invalid(
        "max_new_tokens",
        fmt::format("this model's maximum context length is {} tokens, but {} were asked for: {} of the prompt "
                    "and max_new_tokens = {}; lower one of them",
                    limit, prompt + request.max_new_tokens, prompt, request.max_new_tokens));
  if (request.max_new_tokens == 0) request.max_new_tokens = std::max<int64_t>(std::min(limit, cache) - prompt, 1);
  if (request.min_tokens < 0 || request.min_tokens > request.max_new_tokens)
    return invalid("min_tokens", fmt::format("min_tokens is {}; expected 0 to {}, the most that may be generated",
                                             request.min_tokens, request.max_new_tokens));
  return check_cache(prompt, request.max_new_tokens, cache);
}

}  // namespace

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Engine Engine::open(const EngineOptions& options) {
  auto state = std::make_unique<State>();
  state->model = load_model(load_options(options));
  const std::filesystem::path& directory = state->model.directory;
  state->text = std::make_shared<TextFiles>(TextFiles::load(directory));
  state->tokenizer.emplace(state->text);
  const GenerationConfig generation = load_generation_config(directory);
  if (state->model.model.vision) state->patches = load_patch_options(directory, *state->model.model.vision);
  state->info = describe(state->model, generation);
  const Tokenizer* tokenizer = state->text->tokenizer.get();
  const int64_t vocab = state->info.vocab;
  const int64_t known = tokenizer != nullptr ? std::min<int64_t>(tokenizer->vocab_size(), vocab) : vocab;
  const std::vector<int32_t> eos = stop_tokens(generation, state->model.model, tokenizer);
  if (tokenizer != nullptr) state->vocabulary.emplace(*tokenizer, known, eos);
  state->loop.emplace(state->model,
                      LoopOptions{.world = {.tokenizer = tokenizer,
                                            .chat_format = state->text->chat_format,
                                            .vocabulary = state->vocabulary ? &*state->vocabulary : nullptr,
                                            .valid_vocab = known,
                                            .eos = eos},
                                  .max_queue = options.max_queue,
                                  .scheduler = scheduler_options(options),
                                  .reuse = reuse_options(options),
                                  .faults = faults()});
  return Engine(std::move(state));
}

const EngineTokenizer& Engine::tokenizer() const {
  return *state_->tokenizer;
}

const EngineInfo& Engine::info() const {
  return state_->info;
}

Result<Completion> Engine::submit(Request request) {
  const int64_t limit = state_->info.max_model_len;
  if (Status status = check_sampling(request.sampling, state_->info.vocab); !status.ok()) return status;
  if (Status status = check_tokens(request, state_->info.vocab); !status.ok()) return status;
  const std::optional<Vision>& vision = state_->model.model.vision;
  if (!vision && !request.images.empty()) return invalid("images", "this model sees no images; send text alone");
  std::vector<PatchedImage> images;
  if (vision) {
    auto prepared = prepare_images(request, *vision, state_->patches, state_->text->tokenizer.get());
    if (!prepared.ok()) return prepared.status();
    images = std::move(*prepared);
  }
  if (Status status = check_lengths(request, limit, state_->loop->longest_tokens()); !status.ok()) return status;
  if (Status status = check_tools(request); !status.ok()) return status;
  if (request.prompt_logprobs > kMaxLogprobs)
    return invalid("prompt_logprobs", fmt::format("prompt_logprobs is {}; expected at most {}, or -1 for none",
                                                  request.prompt_logprobs, kMaxLogprobs));
  auto stream = state_->loop->submit(std::move(request), std::move(images));
  if (!stream.ok()) return stream.status();
  return Completion(std::move(*stream));
}

Result<std::shared_ptr<const Grammar>> Engine::compile(const GrammarSource& source) const {
  if (state_->text->tokenizer == nullptr)
    return invalid("grammar", "this model has no tokenizer, which a grammar needs; leave the constraint out");
  return state_->grammars.compile(source, *state_->text->tokenizer);
}

EngineStats Engine::stats() const {
  return state_->loop->stats();
}

Status Engine::clear_prefix_cache() {
  return state_->loop->clear_prefix_cache();
}

std::vector<int32_t> EngineTokenizer::encode(std::string_view text) const {
  return files_->need_tokenizer().encode(text, {.add_special_tokens = true});
}

std::string EngineTokenizer::decode(std::span<const int32_t> tokens, bool skip_special_tokens) const {
  return files_->need_tokenizer().decode(tokens, skip_special_tokens);
}

Result<std::vector<int32_t>> EngineTokenizer::encode_chat(std::string_view messages_json) const {
  ChatInput input;
  try {
    input.messages = parse_json(messages_json, "messages");
  } catch (const Error& error) {
    return Status(StatusCode::invalid_argument, error.what(), "messages");
  }
  return files_->encode_chat(input);
}

bool EngineTokenizer::has_chat_template() const {
  return files_->has_chat();
}

}  // namespace moesaic
