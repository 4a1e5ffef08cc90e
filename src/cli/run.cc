// moesaic run: one prompt, its continuation streamed to stdout.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"

namespace moesaic {
namespace {

std::string read_prompt(const RunOptions& options) {
  std::string prompt = options.prompt;
  if (options.prompt_file == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  else if (!options.prompt_file.empty()) prompt = read_text_file(options.prompt_file);
  if (prompt.empty()) fail_argument("the prompt is empty; give one with -p TEXT or -f FILE");
  return prompt;
}

// Plain text, or a list of images and the text after them, as chat templates know it.
Json content(const std::string& prompt, size_t images) {
  if (images == 0) return Json(prompt);
  JsonArray parts(images, JsonObject{{"type", "image"}});
  parts.push_back({{"type", "text"}, {"text", prompt}});
  return parts;
}

std::vector<std::string> read_images(const std::vector<std::string>& paths) {
  std::vector<std::string> images;
  for (const std::string& path : paths) images.push_back(read_text_file(path, 64 << 20));
  return images;
}

std::vector<int32_t> encode(const Engine& engine, const RunOptions& options, const std::string& prompt) {
  if (!options.chat) return engine.tokenizer().encode(prompt);
  JsonArray messages;
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", content(prompt, options.images.size())}});
  auto tokens = engine.tokenizer().encode_chat(write_json(messages));
  if (!tokens.ok()) throw Error(tokens.status().code(), tokens.status().message());
  return std::move(*tokens);
}

// Not getrusage's, which begins with the size of the process that started this one.
double peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  constexpr std::string_view kPeak = "VmHWM:";
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kPeak)) return std::strtod(line.c_str() + kPeak.size(), nullptr) * 1024;
  return 0;
}

// "; drafted 90, accepted 60 (66.7 %), 3.00 tokens per step": a step gives one token and those it accepts.
std::string draft_summary(const Usage& usage) {
  if (usage.draft_steps == 0) return "";
  const auto drafted = static_cast<double>(usage.draft_tokens),
             accepted = static_cast<double>(usage.accepted_draft_tokens);
  return fmt::format("; drafted {}, accepted {} ({:.1f} %), {:.2f} tokens per step", usage.draft_tokens,
                     usage.accepted_draft_tokens, 100 * accepted / drafted,
                     1 + accepted / static_cast<double>(usage.draft_steps));
}

void print_summary(const Usage& usage) {
  const double prefill = usage.first_token_seconds - usage.queue_seconds;
  const double decode = usage.total_seconds - usage.first_token_seconds;
  fmt::print(stderr,
             "[prompt {} tokens, {:.1f} tokens/s; generated {}, {:.1f} tokens/s{}; first token after {:.0f} ms; "
             "peak memory {}]\n",
             usage.prompt_tokens, static_cast<double>(usage.prompt_tokens) / std::max(prefill, 1e-9),
             usage.completion_tokens,
             static_cast<double>(std::max<int64_t>(usage.completion_tokens - 1, 0)) / std::max(decode, 1e-9),
             draft_summary(usage), usage.first_token_seconds * 1e3, human_bytes(peak_memory_bytes()));
}

}  // namespace

SamplingParams SamplingFlags::over(SamplingParams s) const {
  s.temperature = temperature.value_or(s.temperature);
  s.top_p = top_p.value_or(s.top_p);
  s.min_p = min_p.value_or(s.min_p);
  s.top_k = top_k.value_or(s.top_k);
  s.repetition_penalty = repetition_penalty.value_or(s.repetition_penalty);
  s.presence_penalty = presence_penalty.value_or(s.presence_penalty);
  s.frequency_penalty = frequency_penalty.value_or(s.frequency_penalty);
  if (seed) s.seed = seed;
  return s;
}

int run_run(const RunOptions& options) {
  EngineOptions engine_options = options.engine;
  engine_options.max_num_seqs = 1;
  const std::string prompt = read_prompt(options);  // before a long load
  std::vector<std::string> images = read_images(options.images);
  Engine engine = Engine::open(engine_options);
  Request request{.tokens = encode(engine, options, prompt),
                  .images = std::move(images),
                  .sampling = options.sampling.over(engine.info().default_sampling),
                  .max_new_tokens = options.max_tokens,
                  .stop = options.stop,
                  .ignore_eos = options.ignore_eos,
                  .chat = options.chat};
  auto completion = engine.submit(std::move(request));
  if (!completion.ok()) throw Error(completion.status().code(), completion.status().message());
  const InterruptGuard interrupt([&] { completion->cancel(); });
  while (auto chunk = completion->next()) write_stdout(chunk->text);
  write_stdout("\n");
  print_summary(completion->usage());
  if (completion->status().ok()) return 0;
  if (completion->finish_reason() == FinishReason::cancelled) return 130;  // as a shell reports Ctrl-C
  throw Error(completion->status().code(), completion->status().message());
}

}  // namespace moesaic
