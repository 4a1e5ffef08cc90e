// Continues a prompt: generate MODEL_DIRECTORY [PROMPT]
#include <cstdio>
#include <exception>

#include "moesaic/engine.h"

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: %s MODEL_DIRECTORY [PROMPT]\n", argv[0]), 2;
  moesaic::Engine engine = moesaic::Engine::open({.model = argv[1]});  // throws when the model cannot be loaded
  auto run = engine.submit({.tokens = engine.tokenizer().encode(argc > 2 ? argv[2] : "Once upon a time"),
                            .sampling = {.temperature = 0.6f, .seed = 7},
                            .max_new_tokens = 64});
  if (!run.ok()) return std::fprintf(stderr, "%s\n", run.status().message()), 1;  // e.g. longer than the context
  while (auto chunk = run->next()) std::fwrite(chunk->text.data(), 1, chunk->text.size(), stdout);
  std::puts("");
  return run->status().ok() ? 0 : 1;  // not ok when it ended early: cancelled, non-finite logits
} catch (const std::exception& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
