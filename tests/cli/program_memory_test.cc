// Peak resident memory of the program on synthetic checkpoints, and its progress bar, which only a large one shows.
#include <sys/prctl.h>

#include <cstring>

#include "base/json.h"
#include "cli/program.h"
#include "weights/safetensors_writer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 512,
  "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048,
  "intermediate_size": 512, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 64,
  "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "swiglu_limit": 7.0,
  "quantization_config": {"quant_method": "mxfp4"}})";
constexpr int64_t kTokens = 64;  // one block of cache

class Memory : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    const std::string config = dir_->write("config.json", kConfig);
    const auto synth = [&](const char* name, Arguments more) {
      more.insert(more.begin(), {"synth", config, path(name)});
      ASSERT_EQ(run_program(more).code, 0);
    };
    synth("4", {}), synth("16", {"--layers", "16"}), synth("tiny", {"--layers", "1", "--experts", "4"});
    synth("small4", {"--experts", "4"}), synth("small16", {"--layers", "16", "--experts", "4"});
    std::vector<int64_t> ids;
    for (int64_t i = 0; i <= kTokens; ++i) ids.push_back(i * 31);
    write_safetensors(path("tokens"),
                      {{"tokens", {reinterpret_cast<std::byte*>(ids.data()), DType::i64, {kTokens + 1}}}});
  }
  static void TearDownTestSuite() { delete dir_; }

  static std::string path(const std::string& name) { return (dir_->path() / name).string(); }
  static int64_t file_bytes(const std::string& model) {
    return static_cast<int64_t>(fs::file_size(path(model) + "/model.safetensors"));
  }
  // Loads the model and runs one prompt through it.
  static Arguments use(const std::string& model, const std::string& precision) {
    return {"eval", path(model), "--tokens", path("tokens"), "--precision", precision, "-t", "2"};
  }
  // Bytes of weights as they lie in memory, and of key-value caches for the prompt.
  static std::pair<int64_t, int64_t> planned(const std::string& model, const std::string& precision) {
    const Finished explained =
        run_program({"explain", path(model), "--json", "-c", std::to_string(kTokens), "--precision", precision});
    const Json json = parse_json(explained.out, "explain");
    const JsonObject& memory = json.at("memory").as_object();
    const JsonObject& cache = memory.at("cache").as_object();
    return {json_int(memory, "weights_bytes", ""),
            json_int(cache, "bytes_per_block", "") + json_int(cache, "bytes_per_sequence", "")};
  }

  static TempDir* dir_;
};
TempDir* Memory::dir_ = nullptr;

// The most memory that a process was seen to have. Not wait4's number, which begins with the size of this test.
struct Peak {
  int64_t resident = 0, anonymous = 0;  // bytes
};

Peak peak_of(const Arguments& arguments) {
  Peak peak;
  for (int i = 0; i < 5; ++i) {  // a look may come too late
    Process process(arguments);
    const auto look = [&] {
      const std::string status = read_proc(process.pid(), "status");
      const auto read = [&](const char* name, int64_t& most) {
        const size_t at = status.find(name);
        if (at != std::string::npos)
          most = std::max<int64_t>(most, std::stoll(status.substr(at + std::strlen(name))) * 1024);
        return at != std::string::npos;
      };
      return !read("VmHWM:", peak.resident) || !read("RssAnon:", peak.anonymous);  // a zombie has no memory
    };
    wait_until(look);
    const Finished result = process.finish();
    EXPECT_EQ(result.code, 0) << result.err;
  }
  return peak;
}

// Loading included. What the process needs without a model is measured on a tiny one.
TEST_F(Memory, PeakIsTheFileAndTenPercent) {
  for (const char* precision : {"float32", "fast"}) {
    const int64_t own = peak_of(use("tiny", precision)).resident - file_bytes("tiny");
    for (const char* model : {"4", "16"}) {
      const int64_t cache = planned(model, precision).second;
      const int64_t peak = peak_of(use(model, precision)).resident - own, file = file_bytes(model);
      std::printf("%s, %s layers: peak %.1f MB beyond the program's own %.1f, file %.1f, caches %.2f\n", precision,
                  model, static_cast<double>(peak) / 1e6, static_cast<double>(own) / 1e6,
                  static_cast<double>(file) / 1e6, static_cast<double>(cache) / 1e6);
      EXPECT_LE(peak, (file + cache) / 10 * 11);
      EXPECT_GE(peak, file / 10 * 9);  // else something else was measured
    }
  }
}

// Beyond weights and caches, memory does not grow with the layers' bytes: going from 4 layers to 16 takes as much more
// with large experts as with small ones, which have the same ops, plans and caches.
TEST_F(Memory, FC021_ExtraPeakIsIndependentOfLayers) {
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // of children too: a huge page that is touched once counts as a whole
  const int64_t layer = (file_bytes("16") - file_bytes("4")) / 12;
  for (const char* precision : {"float32", "fast"}) {
    const auto extra = [&](const std::string& model) {
      return peak_of(use(model, precision)).anonymous - planned(model, precision).first;
    };
    const int64_t large = extra("16") - extra("4"), small = extra("small16") - extra("small4");
    std::printf("%s: 12 layers of %.1f MB take %.3f MB extra, 12 small ones %.3f MB\n", precision,
                static_cast<double>(layer) / 1e6, static_cast<double>(large) / 1e6, static_cast<double>(small) / 1e6);
    EXPECT_LT(std::abs(large - small), layer / 100);
    EXPECT_LT(large, layer / 5);  // graph, plans and caches
  }
  prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

// Scoring on the slow reference takes seconds, so its bar is drawn.
TEST_F(Memory, ProgressBarOnTerminalsOnly) {
  Arguments slow = use("small4", "fast");
  slow.insert(slow.end(), {"--device", "ref", "--window", "2", "--max-windows", "4"});
  TerminalProcess terminal(slow);
  EXPECT_EQ(terminal.finish(), 0);
  EXPECT_THAT(terminal.shown(), testing::HasSubstr("\r\033[Kscoring ["));
  EXPECT_THAT(terminal.shown(),
              testing::ContainsRegex("\r.\\[K[0-9]+ tokens in 4 windows"));  // the bar is gone by then
  EXPECT_EQ(run_program(use("16", "fast")).err, "");
}

TEST_F(Memory, InterruptedBarIsRemoved) {
  Arguments slow = use("16", "fast");
  slow.insert(slow.end(), {"--device", "ref", "--window", "1"});
  TerminalProcess terminal(slow);
  terminal.expect("scoring [");
  terminal.type("\003");
  EXPECT_EQ(terminal.finish(), -SIGINT);
  EXPECT_THAT(terminal.shown(), testing::EndsWith("\r\033[K"));
}

}  // namespace
}  // namespace moesaic
