// The C API over Engine. Every function catches everything: an exception never crosses the boundary.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "moesaic/c.h"
#include "moesaic/engine.h"

struct msc_engine {
  moesaic::Engine engine;
};

struct msc_completion {
  moesaic::Completion completion;
  std::string text;  // of the last chunk
};

namespace moesaic {
namespace {

thread_local std::string last_error;

msc_status code_of(StatusCode code) {
  switch (code) {
    case StatusCode::ok: return MSC_OK;
    case StatusCode::invalid_argument: return MSC_INVALID_ARGUMENT;
    case StatusCode::not_found: return MSC_NOT_FOUND;
    case StatusCode::resource_exhausted: return MSC_RESOURCE_EXHAUSTED;
    case StatusCode::unavailable: return MSC_UNAVAILABLE;
    case StatusCode::cancelled: return MSC_CANCELLED;
    case StatusCode::deadline_exceeded: return MSC_DEADLINE_EXCEEDED;
    case StatusCode::data_loss: return MSC_DATA_LOSS;
    case StatusCode::internal: break;
  }
  return MSC_INTERNAL;
}

msc_status fail(const Status& status) {
  last_error = status.message();
  return code_of(status.code());
}

// Every pointer that must not be null, checked before anything else.
void need(const void* pointer, const char* name) {
  if (pointer == nullptr) fail_argument("{} is null", name);
}

template <typename Body>
msc_status guarded(Body body) {
  try {
    return body();
  } catch (const Error& error) {
    return fail({error.code(), error.what()});
  } catch (const std::exception& error) {
    return fail({StatusCode::internal, error.what()});
  }
}

// Reads a caller's struct, which may be an older and shorter one: fields it lacks keep their defaults.
template <typename Params>
void read_params(const Params* from, Params& to) {
  if (from == nullptr) return;
  if (from->struct_size < sizeof from->struct_size)
    fail_argument("struct_size is {}; fill the struct with its msc_..._init function first", from->struct_size);
  std::memcpy(&to, from, std::min<size_t>(from->struct_size, sizeof(Params)));
}

}  // namespace
}  // namespace moesaic

using namespace moesaic;

extern "C" {

void msc_engine_params_init(msc_engine_params* params, size_t size) {
  msc_engine_params defaults{};
  defaults.struct_size = static_cast<uint32_t>(size);
  defaults.max_num_seqs = EngineOptions{}.max_num_seqs;
  defaults.device = "auto";
  defaults.precision = "fast";
  std::memcpy(params, &defaults, std::min(size, sizeof defaults));
}

void msc_request_params_init(const msc_engine* engine, msc_request_params* params, size_t size) {
  const SamplingParams sampling = engine != nullptr ? engine->engine.info().default_sampling : SamplingParams{};
  msc_request_params defaults{};
  defaults.struct_size = static_cast<uint32_t>(size);
  defaults.top_k = sampling.top_k;
  defaults.temperature = sampling.temperature;
  defaults.top_p = sampling.top_p;
  defaults.min_p = sampling.min_p;
  std::memcpy(params, &defaults, std::min(size, sizeof defaults));
}

msc_status msc_engine_open(const char* model_dir, const msc_engine_params* params, msc_engine** engine) {
  if (engine != nullptr) *engine = nullptr;
  return guarded([&] {
    need(engine, "engine"), need(model_dir, "model_dir");
    msc_engine_params p;
    msc_engine_params_init(&p, sizeof p);
    read_params(params, p);
    need(p.device, "device"), need(p.precision, "precision");
    EngineOptions options{.model = model_dir,
                          .device = p.device,
                          .precision = p.precision,
                          .threads = p.threads,
                          .max_model_len = p.max_model_len,
                          .max_num_seqs = p.max_num_seqs};
    *engine = new msc_engine{Engine::open(options)};
    return MSC_OK;
  });
}

void msc_engine_close(msc_engine* engine) {
  delete engine;
}

msc_status msc_submit(msc_engine* engine, const msc_request_params* params, msc_completion** completion) {
  if (completion != nullptr) *completion = nullptr;
  return guarded([&] {
    need(engine, "engine"), need(completion, "completion");
    msc_request_params p;
    msc_request_params_init(engine, &p, sizeof p);
    read_params(params, p);
    Request request{.sampling = engine->engine.info().default_sampling, .max_new_tokens = p.max_new_tokens};
    if (p.tokens != nullptr) request.tokens.assign(p.tokens, p.tokens + p.token_count);
    else if (p.prompt != nullptr) request.tokens = engine->engine.tokenizer().encode(p.prompt);
    request.sampling.temperature = p.temperature;
    request.sampling.top_p = p.top_p;
    request.sampling.min_p = p.min_p;
    request.sampling.top_k = p.top_k;
    if (p.has_seed != 0) request.sampling.seed = p.seed;
    auto submitted = engine->engine.submit(std::move(request));
    if (!submitted.ok()) return fail(submitted.status());
    *completion = new msc_completion{std::move(*submitted), {}};
    return MSC_OK;
  });
}

msc_status msc_next(msc_completion* completion, const char** text, size_t* length) {
  return guarded([&] {
    need(completion, "completion"), need(text, "text"), need(length, "length");
    auto chunk = completion->completion.next();
    completion->text = chunk ? std::move(chunk->text) : std::string();
    *text = completion->text.c_str();
    *length = completion->text.size();
    if (chunk) return MSC_OK;
    return completion->completion.status().ok() ? MSC_END : fail(completion->completion.status());
  });
}

void msc_cancel(msc_completion* completion) {
  if (completion != nullptr) completion->completion.cancel();
}

void msc_completion_free(msc_completion* completion) {
  delete completion;
}

const char* msc_last_error(void) {
  return last_error.c_str();
}

}  // extern "C"
