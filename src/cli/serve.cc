// moesaic serve: from flags to the server.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/commands.h"
#include "cli/explain.h"
#include "engine/load_options.h"

namespace moesaic {
namespace {

// Beside the program: in a source tree, build/bin/moesaic and models/demo; installed, bin and share.
std::string demo_model() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const char* place : {"../../models/demo", "../share/moesaic/demo"}) {
    const auto found = (program.parent_path() / place).lexically_normal();
    if (std::filesystem::is_regular_file(found / "config.json", error)) return found.string();
  }
  fail_argument("no model was given, and the demo model is not beside the program; say moesaic serve MODEL");
}

// "org/name" stays; of a directory, its name.
std::string public_name(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::exists(model, error)) return model;
  const auto path = std::filesystem::absolute(model).lexically_normal();
  return (path.has_filename() ? path.filename() : path.parent_path().filename()).string();
}

// Half a block is no block.
int64_t tokens_of_bytes(const ServeOptions& serve, int64_t bytes) {
  const Explanation e = explain_model(load_options(serve.engine));
  const int64_t slots = e.load.max_sequences * e.compiled.cache.slot_stride;
  const int64_t blocks =
      e.compiled.cache.block_stride > 0 ? (bytes - slots) / e.compiled.cache.block_stride : INT64_MAX / kBlockTokens;
  if (blocks < 1)
    fail_argument("--kv-cache-bytes is {}; a block of {} tokens takes {} bytes and the state of {} sequences {}", bytes,
                  kBlockTokens, e.compiled.cache.block_stride, e.load.max_sequences, slots);
  return blocks * kBlockTokens;
}

int dry_run(const ServeOptions& serve) {
  const Explanation e = explain_model(load_options(serve.engine));
  const int64_t total =
      e.compiled.weights.bytes + cache_size(e).bytes + e.compiled.activation_bytes() + e.compiled.workspace_bytes();
  fmt::print("{} on {}, precision {}\n\n", e.model.family, e.device.name, precision_text(e));
  print_memory(e);
  if (e.device.memory_bytes == 0 || total <= e.device.memory_bytes) return 0;
  fmt::print(stderr,
             "moesaic: it does not fit: {} are needed, the device has {}; serve fewer (--max-num-seqs) or shorter "
             "(--max-model-len) sequences, or make the cache smaller (--kv-cache-tokens)\n",
             human_bytes(static_cast<double>(total)), human_bytes(static_cast<double>(e.device.memory_bytes)));
  return 1;
}

}  // namespace

int run_serve(RunServeOptions options) {
  ServeOptions& serve_options = options.serve;
  EngineOptions& engine = serve_options.engine;
  if (std::getenv("MOESAIC_LOG") == nullptr) set_log_level(LogLevel::info);
  set_log_format(options.json_logs ? LogFormat::json : LogFormat::timed);
  for (const std::string& warning : options.warnings) log_warn("{}", warning);
  if (engine.model.empty()) engine.model = demo_model();
  if (options.kv_cache_bytes > 0) engine.kv_cache_tokens = tokens_of_bytes(serve_options, options.kv_cache_bytes);
  if (options.dry_run) return dry_run(serve_options);
  ApiOptions& api = serve_options.api;
  if (api.served_names.empty()) api.served_names = {public_name(engine.model)};
  api.model_root = engine.model;
  serve_options.metrics.model_name = api.served_names.front();
  if (engine.max_model_len > 0) serve_options.metrics.max_model_len = engine.max_model_len;
  engine.progress = isatty(STDERR_FILENO) != 0;
  http::raise_descriptor_limit();
  return serve(serve_options);
}

}  // namespace moesaic
