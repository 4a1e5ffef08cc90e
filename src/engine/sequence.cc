#include "engine/sequence.h"

#include <algorithm>

#include "base/error.h"

namespace moesaic {
namespace {

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

GeneratedToken generated_token(const SampledToken& token) {
  GeneratedToken out{.id = token.id, .logprob = token.logprob, .gap = token.gap};
  for (int i = 0; i < token.top_count; ++i)
    out.top.emplace_back(token.top[static_cast<size_t>(i)].id, token.top[static_cast<size_t>(i)].logprob);
  return out;
}

}  // namespace

Sequence::Sequence(Request r, std::shared_ptr<CompletionStream> out, const Tokenizer* tokenizer, int64_t valid_vocab)
    : request(std::move(r)),
      stream(std::move(out)),
      tokens(request.tokens),
      prompt_tokens(static_cast<int64_t>(tokens.size())),
      sampler(request.sampling, tokens, valid_vocab),
      stops(request.stop),
      submitted(Clock::now()) {
  tokens.reserve(static_cast<size_t>(worst_case_tokens()));
  if (tokenizer == nullptr) return;
  if (request.chat && HarmonyParser::speaks(*tokenizer)) parser.emplace(*tokenizer);
  else detokenizer.emplace(*tokenizer, request.skip_special_tokens);
}

std::span<const int32_t> Sequence::last_and_drafts(std::vector<int32_t>& buffer) const {
  buffer.assign(1, tokens.back());
  for (const DraftToken& draft : drafts) buffer.push_back(draft.id);
  return buffer;
}

bool Sequence::sampled_by_host() const {
  const SamplingParams& p = request.sampling;
  return !p.logit_bias.empty() || p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0 ||
         p.logprobs > 0;
}

void Sequence::count_drafts(int64_t accepted) {
  if (drafts.empty()) return;
  ++usage.draft_steps;
  usage.draft_tokens += std::ssize(drafts);
  usage.accepted_draft_tokens += accepted;
  drafts.clear();
}

bool Sequence::accept(const SampledToken& token, std::span<const int32_t> eos, FinishReason& reason) {
  if (generated() == 0) first_token = Clock::now();
  tokens.push_back(token.id);
  const auto among = [&](std::span<const int32_t> ids) {
    return std::find(ids.begin(), ids.end(), token.id) != ids.end();
  };
  const bool stop_token = (!request.ignore_eos && among(eos)) || among(request.stop_token_ids);
  Chunk chunk;
  chunk.tokens.push_back(generated_token(token));
  bool ended = stop_token || generated() >= request.max_new_tokens;
  reason = stop_token ? FinishReason::stop : FinishReason::length;
  HarmonyParser::Delta delta = text_of(token.id, !stop_token, ended);
  StopStrings::Release release = stops.push(delta.content);
  if (release.match) ended = true, reason = FinishReason::stop;
  chunk.text = std::move(release.text);
  chunk.reasoning = std::move(delta.reasoning);
  if (ended && !release.match) chunk.text += stops.flush();
  stream->push(std::move(chunk));
  return ended;
}

HarmonyParser::Delta Sequence::text_of(int32_t token, bool visible, bool ended) {
  HarmonyParser::Delta delta, rest;
  if (parser) {
    delta = parser->push(token);
    if (ended) rest = parser->flush();
  } else if (detokenizer) {
    if (visible) delta.content = detokenizer->push(token);
    if (ended) rest.content = detokenizer->flush();
  }
  return {.content = delta.content + rest.content, .reasoning = delta.reasoning + rest.reasoning};
}

void Sequence::finish(Status status, FinishReason reason) {
  const Clock::time_point now = Clock::now();
  usage.prompt_tokens = prompt_tokens;
  usage.completion_tokens = generated();
  usage.total_seconds = seconds(now - submitted);
  if (cache.slot >= 0 || generated() > 0) usage.queue_seconds = seconds(started - submitted);
  if (generated() > 0) usage.first_token_seconds = seconds(first_token - submitted);
  stream->finish(std::move(status), reason, usage);
}

void Sequence::place_image_rows(int32_t placeholder, int64_t hidden) {
  const float* next = image_rows.data();
  for (int64_t t = 0; t < prompt_tokens; ++t) {
    const bool image = tokens[static_cast<size_t>(t)] == placeholder;
    row_of.push_back(image ? next : nullptr);
    if (image) next += hidden;
  }
  CHECK(next == image_rows.data() + image_rows.size(), "{} floats of image rows", image_rows.size());
}

std::span<const float* const> Sequence::image_rows_of(int64_t start, int64_t count) const {
  if (row_of.empty()) return {};
  return std::span(row_of).subspan(static_cast<size_t>(start), static_cast<size_t>(count));
}

}  // namespace moesaic
