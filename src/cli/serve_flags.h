// The flags of `moesaic serve`: ours, and those that users of vLLM, SGLang and llama.cpp have in their fingers.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace moesaic {

class ServeFlags {
 public:
  ServeFlags();
  ~ServeFlags();
  void add(CLI::App& main);
  // After parsing: checks what the flags mean together and warns of those that are ignored. Throws Error.
  RunServeOptions get() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The arguments behind the program's name, as the parser wants them: where they begin with "serve", --max_model_len and
// -tp 2 become --max-model-len and --tensor-parallel-size 2, and the flags of --config FILE go before the others, which
// therefore win. Throws Error.
std::vector<std::string> serve_arguments(std::vector<std::string> arguments);

// The option of `app` whose name is most like this unknown one; empty where none is near.
std::string nearest_flag(const CLI::App& app, const std::string& unknown);

}  // namespace moesaic
