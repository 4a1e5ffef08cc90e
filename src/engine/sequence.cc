#include "engine/sequence.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"

namespace moesaic {
namespace {

constexpr int64_t kUsualAnswer = 1024;  // tokens that an answer has room for from the start; longer ones grow

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

Sequence::Sequence(Request r, std::shared_ptr<CompletionStream> out, const SequenceWorld& shared)
    : request(std::move(r)),
      stream(std::move(out)),
      tokens(request.tokens),
      prompt_tokens(static_cast<int64_t>(tokens.size())),
      sampler(request.sampling, tokens, shared.valid_vocab, request.choice),
      stop_strings(request.stop),
      submitted(Clock::now()),
      world(shared),
      ending(request.stop_token_ids) {
  if (!request.ignore_eos) ending.insert(ending.end(), world.eos.begin(), world.eos.end());
  tokens.reserve(static_cast<size_t>(std::min(worst_case_tokens(), prompt_tokens + kUsualAnswer)));
  if (world.tokenizer == nullptr) return;
  if (request.chat)
    parser.emplace(world.chat_format, *world.tokenizer, tokens,
                   request.tools.empty() ? Json() : parse_json(request.tools, "tools"));
  else detokenizer.emplace(*world.tokenizer, request.skip_special_tokens);
  if (request.grammar == nullptr) return;
  matcher.emplace(request.grammar, *world.vocabulary);
  mask.resize(static_cast<size_t>((world.vocabulary->vocab() + 31) / 32));
}

std::span<const int32_t> Sequence::last_and_drafts(std::vector<int32_t>& buffer) const {
  buffer.assign(1, tokens.back());
  for (const DraftToken& draft : drafts) buffer.push_back(draft.id);
  return buffer;
}

bool Sequence::sampled_by_host() const {
  const SamplingParams& p = request.sampling;
  return !p.logit_bias.empty() || p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0 ||
         p.logprobs > 0 || filtered();
}

namespace {

bool has_bit(std::span<const uint32_t> mask, int32_t token) {
  const auto word = static_cast<size_t>(token / 32);
  return word < mask.size() && (mask[word] >> (token % 32) & 1) != 0;
}

// Whether the mask allows anything but these tokens.
bool allows_more(std::span<const uint32_t> mask, std::span<const int32_t> ending) {
  int64_t allowed = 0;
  for (uint32_t word : mask) allowed += std::popcount(word);
  const std::set<int32_t> distinct(ending.begin(), ending.end());
  return allowed > std::ranges::count_if(distinct, [&](int32_t token) { return has_bit(mask, token); });
}

}  // namespace

// A grammar that has nothing left to say ends the answer, however short.
TokenFilter Sequence::filter() const {
  TokenFilter out;
  if (matcher) out.allowed = mask;
  if (generated() < request.min_tokens && (!matcher || allows_more(mask, ending))) out.banned = ending;
  return out;
}

bool Sequence::ends(int32_t token) const {
  const auto among = [&](std::span<const int32_t> ids) { return std::ranges::find(ids, token) != ids.end(); };
  return among(ending) || (matcher && matcher->complete() && among(world.eos));
}

void Sequence::score_prompt(std::span<const float> logits, int64_t position) {
  prompt_scores.push_back(generated_token(
      score_token(logits, tokens[static_cast<size_t>(position)], request.prompt_logprobs, sampler.valid_vocab())));
}

void Sequence::count_drafts(int64_t accepted) {
  if (drafts.empty()) return;
  ++usage.draft_steps;
  usage.draft_tokens += std::ssize(drafts);
  usage.accepted_draft_tokens += accepted;
  drafts.clear();
}

bool Sequence::accept(const SampledToken& token, FinishReason& reason) {
  if (generated() == 0) first_token = Clock::now();
  tokens.push_back(token.id);
  const bool stop_token = ends(token.id);
  if (matcher && !stop_token) matcher->accept(token.id);
  Chunk chunk{.prompt = std::exchange(prompt_scores, {})};
  chunk.tokens.push_back(generated_token(token));
  const bool full = generated() >= request.max_new_tokens;
  reason = stop_token ? FinishReason::stop : FinishReason::length;
  if (stop_token && std::ranges::find(request.stop_token_ids, token.id) != request.stop_token_ids.end())
    stop_match.token = token.id;
  AnswerDelta delta = text_of(token.id, !stop_token, stop_token || full);
  chunk.tokens.back().markup = parser && parser->in_markup();
  chunk.reasoning = std::move(delta.reasoning);
  chunk.tool_calls = std::move(delta.tool_calls);
  const bool stopped = release_text(delta.content, stop_token || full, chunk.text);
  if (stopped) reason = FinishReason::stop;
  stream->push(std::move(chunk));
  return stop_token || full || stopped;
}

// Whether a stop string ended the text.
bool Sequence::release_text(const std::string& content, bool last, std::string& out) {
  StopStrings::Release release = stop_strings.push(content);
  out = std::move(release.text);
  if (!release.match) {
    if (last) out += stop_strings.flush();
    return false;
  }
  stop_match = {.text = request.stop[*release.match]};
  if (request.include_stop) out += *stop_match.text;
  return true;
}

AnswerDelta Sequence::text_of(int32_t token, bool visible, bool last) {
  AnswerDelta delta;
  if (parser) {
    parser->push(token, delta);
    usage.reasoning_tokens += parser->in_reasoning() ? 1 : 0;
    if (last) parser->flush(delta);
  } else if (detokenizer) {
    if (visible) delta.content = detokenizer->push(token);
    if (last) delta.content += detokenizer->flush();
  }
  return delta;
}

void Sequence::finish(Status status, FinishReason reason) {
  const Clock::time_point now = Clock::now();
  usage.prompt_tokens = prompt_tokens;
  usage.completion_tokens = generated();
  usage.total_seconds = seconds(now - submitted);
  if (started != Clock::time_point()) usage.queue_seconds = seconds(started - submitted);
  if (generated() > 0) usage.first_token_seconds = seconds(first_token - submitted);
  stream->finish(std::move(status), reason, usage, std::move(stop_match));
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
