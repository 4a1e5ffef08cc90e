/* The C API: the same engine behind opaque handles. No exception crosses it; structs carry their size, so that fields
 * can be added. Functions may be called from any thread; one completion is read by one thread at a time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct msc_engine msc_engine;
typedef struct msc_completion msc_completion;

typedef enum msc_status {
  MSC_OK = 0,
  MSC_END = 1, /* msc_next: the completion has ended */
  MSC_INVALID_ARGUMENT,
  MSC_NOT_FOUND,
  MSC_RESOURCE_EXHAUSTED,
  MSC_UNAVAILABLE,
  MSC_CANCELLED,
  MSC_DEADLINE_EXCEEDED,
  MSC_DATA_LOSS,
  MSC_INTERNAL
} msc_status;

typedef struct msc_engine_params {
  uint32_t struct_size;
  int32_t threads;       /* 0: one per available core */
  int64_t max_model_len; /* 0: what the model allows, at most 8192 */
  int64_t max_num_seqs;  /* sequences in flight */
  const char* device;    /* "auto", "cpu", "ref" */
  const char* precision; /* "fast", "fp8", "float32" */
} msc_engine_params;

typedef struct msc_request_params {
  uint32_t struct_size;
  int32_t top_k;
  const int32_t* tokens; /* the prompt; or null, and then `prompt` is tokenized */
  size_t token_count;
  const char* prompt;     /* UTF-8 */
  int64_t max_new_tokens; /* 0: up to the context length or the cache's size */
  uint64_t seed;          /* used when has_seed is not 0 */
  float temperature, top_p, min_p;
  int32_t has_seed;
} msc_request_params;

/* Fill in defaults; `size` is sizeof of the struct. A request's sampling defaults are the model's. */
void msc_engine_params_init(msc_engine_params* params, size_t size);
void msc_request_params_init(const msc_engine* engine, msc_request_params* params, size_t size);

/* Loads the model in `model_dir` (or a name in the Hugging Face cache). On failure *engine is null. */
msc_status msc_engine_open(const char* model_dir, const msc_engine_params* params, msc_engine** engine);
/* Cancels what is in flight. Completions must be freed before. */
void msc_engine_close(msc_engine* engine);

msc_status msc_submit(msc_engine* engine, const msc_request_params* params, msc_completion** completion);
/* Waits for the next piece of text; `*text` (UTF-8, NUL-terminated, `*length` bytes) is valid until the next call on
 * this completion. MSC_END after the last; any other code when the completion failed. */
msc_status msc_next(msc_completion* completion, const char** text, size_t* length);
void msc_cancel(msc_completion* completion);
/* Cancels it if it has not ended. */
void msc_completion_free(msc_completion* completion);

/* Why the last call on this thread failed: one line, never null. */
const char* msc_last_error(void);

#ifdef __cplusplus
}
#endif
