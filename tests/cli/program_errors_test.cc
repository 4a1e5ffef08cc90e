// Bad input through the program: each gives one clear line on stderr and exit code 1 (2 for usage), never a crash.
#include <cstring>

#include "base/fresh_rng.h"
#include "cli/program.h"
#include "support/checkpoint.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;
using Parts = std::vector<std::string>;

const std::string kReference = kMxfp4Model + "/golden.safetensors";

Finished diff(const std::string& model, Arguments more = {}) {
  more.insert(more.begin(), {"diff", model, "-r", kReference, "--precision", "float32"});
  return run_program(more);
}

// Every command that reads weights refuses the model with the same line; inspect refuses or reports it.
void expect_bad_model(const std::string& model, const Parts& parts) {
  SCOPED_TRACE(testing::PrintToString(parts));
  expect_refusal(diff(model), 1, parts);
  expect_refusal(run_program({"run", model, "-p", "x"}), 1, parts);
  const Finished inspected = run_program({"inspect", model});
  EXPECT_EQ(inspected.code, 1);
  for (const std::string& part : parts) EXPECT_THAT(inspected.out + inspected.err, HasSubstr(part));
}

// A directory with the golden model's config and other bytes for its weights.
class BadFile {
 public:
  explicit BadFile(std::string_view bytes, const std::string& name = "model.safetensors") {
    fs::copy_file(kMxfp4Model + "/config.json", dir_.path() / "config.json");
    dir_.write(name, bytes);
  }
  std::string path() const { return dir_.path().string(); }
  const TempDir& dir() const { return dir_; }

 private:
  TempDir dir_;
};

std::string golden_bytes() {
  return read_text_file(kMxfp4Model + "/model.safetensors");
}

// The golden weights with an edited header.
std::string with_header(const std::function<void(JsonObject&)>& edit, const std::string& more_data = "") {
  const std::string bytes = golden_bytes();
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  Json header = parse_json(std::string_view(bytes).substr(8, length), "header");
  edit(header.as_object());
  const std::string text = write_json(header);
  const uint64_t now = text.size();
  return std::string(reinterpret_cast<const char*>(&now), 8) + text + bytes.substr(8 + length) + more_data;
}

JsonObject& entry(JsonObject& header, const char* name) {
  return header.at(name).as_object();
}

TEST(BadCheckpoint, TruncatedAnywhere) {
  Rng rng = fresh_rng();
  const std::string whole = golden_bytes();
  const auto size = static_cast<int64_t>(whole.size());
  for (int64_t length : {int64_t{0}, int64_t{7}, int64_t{8}, int64_t{100}, size - 1, 1 + rng.below(size - 1)})
    expect_bad_model(BadFile(whole.substr(0, static_cast<size_t>(length))).path(), {"model.safetensors", "bytes long"});
  expect_bad_model(BadFile(whole + "x").path(), {"model.safetensors", "trailing"});
}

TEST(BadCheckpoint, HostileHeaders) {
  const auto bad = [](const std::function<void(JsonObject&)>& edit, const Parts& parts) {
    expect_bad_model(BadFile(with_header(edit)).path(), parts);
  };
  const char* norm = "model.norm.weight";
  bad([&](JsonObject& h) { entry(h, norm)["data_offsets"] = entry(h, "lm_head.weight")["data_offsets"]; },
      {"model.safetensors", norm});
  bad([&](JsonObject& h) { h["copy"] = h.at(norm); }, {"model.safetensors", "overlaps"});
  bad([&](JsonObject& h) { h.erase(norm); }, {"model.safetensors", "hole"});
  bad([&](JsonObject& h) { entry(h, norm)["shape"] = JsonArray{int64_t{1} << 62, 16}; }, {norm, "overflows"});
  bad([&](JsonObject& h) { entry(h, norm)["shape"] = JsonArray{-96}; }, {norm, "shape"});
  bad([&](JsonObject& h) { entry(h, norm)["data_offsets"] = JsonArray{0, UINT64_MAX}; }, {norm, "data_offsets"});
  bad([&](JsonObject& h) { entry(h, norm)["dtype"] = "F1"; }, {norm, "F1"});
  bad([&](JsonObject& h) { h[norm] = 7; }, {norm});
  bad([&](JsonObject& h) { h["__metadata__"] = JsonArray{}; }, {"__metadata__"});
}

TEST(BadCheckpoint, NotSafetensorsAtAll) {
  std::string huge(64, '\0');
  std::memset(huge.data(), 0xFF, 8);
  expect_bad_model(BadFile(huge).path(), {"model.safetensors", "not a safetensors file"});
  expect_bad_model(BadFile("<!doctype html><html>please log in</html>").path(),
                   {"model.safetensors", "not a safetensors file"});
  const std::string deep(5000, '[');
  const uint64_t length = deep.size() + 5;
  expect_bad_model(BadFile(std::string(reinterpret_cast<const char*>(&length), 8) + "{\"a\":" + deep).path(),
                   {"model.safetensors"});
  Rng rng = fresh_rng();
  std::string noise(4096, '\0');
  for (char& c : noise) c = static_cast<char>(rng.below(256));
  expect_bad_model(BadFile(noise).path(), {"model.safetensors"});
}

TEST(BadCheckpoint, TensorsThatDoNotFitTheConfig) {
  const std::string q = "model.layers.2.self_attn.q_proj.weight",
                    scales = "model.layers.1.mlp.experts.down_proj_scales";
  const auto bad = [](const EditedCheckpoint::Edit& edit, const Parts& parts) {
    expect_bad_model(EditedCheckpoint("gpt_oss-mxfp4", edit).path(), parts);
  };
  bad([&](TensorMap& t, JsonObject&) { t.erase(q); }, {"missing", q});
  bad([&](TensorMap& t, JsonObject&) { t.erase(scales); }, {"missing", scales});
  bad([&](TensorMap& t, JsonObject&) { t["model.extra.weight"] = t.at(q); }, {"unexpected", "model.extra.weight"});
  bad([&](TensorMap& t, JsonObject&) { t.at(q).shape = {64, 192}; }, {q, "[64, 192]", "[128, 96]"});
  bad([&](TensorMap& t, JsonObject&) { t.at(q).dtype = DType::u16; }, {q, "U16", "BF16"});
  bad([&](TensorMap&, JsonObject& c) { c["hidden_size"] = 128; },
      {"model.embed_tokens.weight", "[320, 96]", "[320, 128]"});
}

TEST(BadCheckpoint, NanScaleNamesItsRow) {
  Rng rng = fresh_rng();
  const std::string name = "model.layers.1.mlp.experts.gate_up_proj_scales";
  int64_t expert = 0, row = 0;
  const EditedCheckpoint edited("gpt_oss-mxfp4", [&](TensorMap& t, JsonObject&) {
    OwnedTensor& scales = t.at(name);
    const auto at = static_cast<size_t>(rng.below(scales.shape.elements()));
    scales.bytes[at] = std::byte{0xFF};
    row = static_cast<int64_t>(at) / scales.shape[2] % scales.shape[1];
    expert = static_cast<int64_t>(at) / (scales.shape[1] * scales.shape[2]);
  });
  for (const char* precision : {"fast", "float32"})
    expect_refusal(run_program({"run", edited.path(), "-p", "x", "--precision", precision}), 1,
                   {name, fmt::format("expert {} row {} ", expert, row), "NaN"});
  expect_refusal(run_program({"run", edited.path(), "-p", "x", "--device", "ref"}), 1, {name, "NaN"});
}

// The golden weights as one shard of an index that says `map`.
struct Indexed : BadFile {
  explicit Indexed(const JsonObject& map) : BadFile(golden_bytes(), "model-00001-of-00002.safetensors") {
    dir().write("model.safetensors.index.json", write_json(JsonObject{{"weight_map", map}}));
  }
};

TEST(BadCheckpoint, Shards) {
  const char* first = "model-00001-of-00002.safetensors";
  const char* second = "model-00002-of-00002.safetensors";
  expect_bad_model(Indexed({{"lm_head.weight", first}, {"model.norm.weight", second}}).path(), {second, "missing"});
  expect_bad_model(Indexed({{"lm_head.weight", "../model.safetensors"}}).path(),
                   {"lm_head.weight", "../model.safetensors"});
  expect_bad_model(Indexed({{"no.such.tensor", first}}).path(), {"no.such.tensor"});
  expect_bad_model(Indexed({}).path(), {"index.json", "no tensors"});
  const Indexed twice({{"lm_head.weight", first}, {"model.norm.weight", second}});
  twice.dir().write(second, golden_bytes());
  expect_bad_model(twice.path(), {first, second});
  const BadFile broken(golden_bytes(), first);
  broken.dir().write("model.safetensors.index.json", "{\"weight_map\": ");
  expect_bad_model(broken.path(), {"model.safetensors.index.json"});
}

TEST(BadModel, NoneOrUnknown) {
  expect_bad_model("no/such/model", {"no/such/model"});
  expect_bad_model("/dev/null", {"/dev/null"});
  const TempDir empty;
  expect_bad_model(empty.path().string(), {"config.json"});
  const BadFile pickle("PK", "pytorch_model.bin");
  expect_refusal(diff(pickle.path()), 1, {"pytorch_model.bin", "safetensors"});
  const auto config = [](const EditedCheckpoint::Edit& edit, const Parts& parts) {
    expect_bad_model(EditedCheckpoint("gpt_oss-mxfp4", edit).path(), parts);
  };
  config([](TensorMap&, JsonObject& c) { c["architectures"] = JsonArray{"OwlForCausalLM"}; },
         {"OwlForCausalLM", "GptOss"});
  config([](TensorMap&, JsonObject& c) { c["hidden_size"] = "wide"; }, {"config.json", "hidden_size", "wide"});
  config([](TensorMap&, JsonObject& c) { c["num_experts_per_tok"] = 9; }, {"config.json", "9 of 8"});
  const BadFile text("");
  text.dir().write("config.json", "{\"architectures\": [\"GptOssForCausalLM\"");
  expect_bad_model(text.path(), {"config.json"});
}

// The demo model with another file in place of one of its own.
class DemoWith {
 public:
  DemoWith(const std::string& name, const std::optional<std::string>& text) {
    for (const char* file : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                             "chat_template.jinja", "model.safetensors"})
      if (name != file) fs::create_symlink(fs::path(kDemoModel) / file, dir_.path() / file);
    if (text) dir_.write(name, *text);
  }
  std::string path() const { return dir_.path().string(); }

 private:
  TempDir dir_;
};

TEST(BadText, Tokenizer) {
  const auto refused = [](const std::optional<std::string>& text) {
    const DemoWith model("tokenizer.json", text);
    expect_refusal(run_program({"run", model.path(), "-p", "x"}), 1, {model.path(), "tokenizer.json"});
    expect_refusal(run_program({"chat", model.path()}, "x\n"), 1, {model.path(), "tokenizer.json"});
  };
  refused(std::nullopt);
  refused("");
  refused("[]");
  const std::string whole = read_text_file(kDemoModel + "/tokenizer.json");
  refused(whole.substr(0, whole.size() / 2));
  Json edited = parse_json(whole, "tokenizer");
  edited.at("model").at("type") = "Unigram";
  refused(write_json(edited));
  edited.at("model").at("type") = "BPE";
  edited.at("model").at("merges").as_array().push_back("no such");
  refused(write_json(edited));
}

// A broken template is the matter of chats alone.
TEST(BadText, ChatTemplate) {
  const auto refused = [](const std::string& text, const Parts& parts) {
    const DemoWith model("chat_template.jinja", text);
    expect_refusal(run_program({"run", model.path(), "--chat", "-p", "x"}), 1, parts);
    const Finished plain = run_program({"run", model.path(), "-p", "Once", "-n", "3"});
    EXPECT_EQ(plain.code, 0);
    EXPECT_EQ(lines(plain.err), 1) << plain.err;
    return run_program({"chat", model.path()}, "x\n");
  };
  expect_refusal(refused("{% for m in messages %}{{ m.content }", {"chat_template.jinja"}), 1, {"chat_template.jinja"});
  expect_refusal(refused("{{ messages | no_such_filter }}", {"no_such_filter"}), 1, {"no_such_filter"});
  // This one fails only for what was asked: the chat itself goes on.
  const Finished chat = refused("{{ raise_exception('only owls may ask') }}", {"only owls may ask"});
  EXPECT_EQ(chat.code, 0);
  EXPECT_EQ(lines(chat.err), 1) << chat.err;
  EXPECT_THAT(chat.err, HasSubstr("only owls may ask"));
}

TEST(BadText, NoTemplate) {
  const DemoWith model("chat_template.jinja", std::nullopt);
  expect_refusal(run_program({"run", model.path(), "--chat", "-p", "x"}), 1, {model.path(), "chat template"});
  expect_refusal(run_program({"chat", model.path()}, "x\n"), 1, {model.path(), "chat template"});
}

TEST(BadRequest, PromptsAndLengths) {
  const auto run = [](Arguments more, const std::string& input = "") {
    more.insert(more.begin(), {"run", kDemoModel});
    return run_program(more, input);
  };
  expect_refusal(run({}), 1, {"the prompt is empty", "-p"});
  expect_refusal(run({"-p", ""}), 1, {"the prompt is empty"});
  expect_refusal(run({"-f", "-"}), 1, {"the prompt is empty"});
  expect_refusal(run({"-f", "no-such-file"}), 1, {"no-such-file", "No such file"});
  std::string story;
  for (int i = 0; i < 3000; ++i) story += " a";
  expect_refusal(run({"-f", "-"}, story), 1, {"has 3000 tokens", "2048 tokens"});
  expect_refusal(run({"-p", "a a a a", "-c", "4"}), 1, {"has 4 tokens", "4 tokens"});
  expect_refusal(run({"-p", "a a a", "-n", "2046"}), 1, {"2049", "2048", "2046"});
  EXPECT_EQ(run({"-p", "a a a", "-c", "8", "-n", "5"}).code, 0);
  expect_refusal(run({"-p", "a", "-c", "4096"}), 1, {"4096", "2048"});
}

TEST(Usage, OneLineAndExitCodeTwo) {
  const auto usage = [](const Arguments& arguments, Parts parts) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    parts.emplace_back(" --help");
    expect_refusal(run_program(arguments), 2, parts);
  };
  usage({}, {"no command", "moesaic --help"});
  usage({"fly", kDemoModel}, {"\"fly\""});
  usage({"run"}, {"model is required", "moesaic run --help"});
  usage({"run", kDemoModel, "--no-such-flag"}, {"--no-such-flag"});
  usage({"run", kDemoModel, "-p"}, {"--prompt"});
  usage({"run", kDemoModel, "-p", "a", "-f", "b"}, {"--prompt", "--file"});
  usage({"run", kDemoModel, "-p", "a", "--system", "b"}, {"--system", "--chat"});
  usage({"run", kDemoModel, "-p", "a", "-n", "-1"}, {"--max-tokens"});
  usage({"run", kDemoModel, "-p", "a", "-n", "many"}, {"--max-tokens"});
  usage({"run", kDemoModel, "-p", "a", "--threads", "99999999999999999999"}, {"--threads"});
  usage({"run", kDemoModel, "-p", "a", "--seed", "-1"}, {"--seed"});
  usage({"run", kDemoModel, "-p", "a", "--temperature", "3"}, {"temperature is 3"});
  usage({"run", kDemoModel, "-p", "a", "--top-p", "nan"}, {"top_p is nan"});
  usage({"chat", kDemoModel, "--min-p", "2"}, {"min_p is 2"});
  usage({"run", kDemoModel, "-p", "a", "--device", "abacus"}, {"abacus", "ref"});
  usage({"explain", kDemoModel, "--precision", "half"}, {"half", "float32"});
  usage({"explain", kDemoModel, "--phase", "lunar"}, {"lunar", "decode"});
  usage({"diff", kDemoModel}, {"--reference"});
  usage({"diff", kDemoModel, "-r", kReference, "--against", "abacus"}, {"abacus"});
  usage({"bench", kDemoModel, "-p", "128,x"}, {"--n-prompt"});
  usage({"eval", kDemoModel, "--text", "a", "--tokens", "b"}, {"--text", "--tokens"});
  usage({"synth", kMxfp4Model + "/config.json"}, {"out is required"});
}

TEST(Usage, HelpOfEveryCommand) {
  const Finished all = run_program({"--help"});
  EXPECT_EQ(all.code, 0);
  for (const char* command : {"run", "chat", "inspect", "explain", "diff", "bench", "eval", "synth"}) {
    EXPECT_THAT(all.out, HasSubstr(std::string("\n  ") + command + " "));
    const Finished help = run_program({command, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_EQ(help.err, "");
    EXPECT_THAT(help.out, HasSubstr(std::string("Usage: moesaic ") + command));
  }
  const Finished version = run_program({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace moesaic
