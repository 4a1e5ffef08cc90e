/* Continues a prompt through the C API: generate_c MODEL_DIRECTORY [PROMPT] */
#include <stdio.h>

#include "moesaic/c.h"

int main(int argc, char** argv) {
  msc_engine* engine;
  msc_completion* completion;
  msc_request_params request;
  const char* text;
  size_t length;
  msc_status status;

  if (argc < 2) return fprintf(stderr, "usage: %s MODEL_DIRECTORY [PROMPT]\n", argv[0]), 2;
  if (msc_engine_open(argv[1], NULL, &engine) != MSC_OK) return fprintf(stderr, "%s\n", msc_last_error()), 1;
  msc_request_params_init(engine, &request, sizeof request);
  request.prompt = argc > 2 ? argv[2] : "Once upon a time";
  request.max_new_tokens = 64;
  status = msc_submit(engine, &request, &completion);
  if (status == MSC_OK) {
    while ((status = msc_next(completion, &text, &length)) == MSC_OK) fwrite(text, 1, length, stdout);
    msc_completion_free(completion);
  }
  if (status != MSC_END) fprintf(stderr, "%s\n", msc_last_error());
  msc_engine_close(engine);
  puts("");
  return status == MSC_END ? 0 : 1;
}
