// `moesaic run --image`: the golden Kimi K2.5 with a small tokenizer beside it.
#include "base/json.h"
#include "cli/program.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

const std::string kKimi = MOESAIC_SOURCE_DIR "/tests/golden/kimi_k25/";
const std::string kImages = MOESAIC_SOURCE_DIR "/tests/media/data/";

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    "{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}";

JsonObject added(int id, const char* name) {
  return {{"id", id}, {"content", name}, {"special", true}, {"normalized", false}};
}

// One token per printable character, and the brackets of an image.
std::string tokenizer() {
  JsonObject vocab{{"\u0120", 0}};
  for (int c = '!'; c <= '~'; ++c) vocab[std::string(1, static_cast<char>(c))] = c - ' ';
  const JsonObject bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return write_json(
      JsonObject{{"added_tokens", JsonArray{added(310, "<|media_pad|>"), added(312, "<|media_begin|>"),
                                            added(313, "<|media_end|>"), added(314, "<|media_content|>")}},
                 {"normalizer", nullptr},
                 {"pre_tokenizer", bytes},
                 {"post_processor", nullptr},
                 {"decoder", bytes},
                 {"model", JsonObject{{"type", "BPE"}, {"vocab", vocab}, {"merges", JsonArray{}}}}});
}

class RunImage : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"config.json", "generation_config.json", "preprocessor_config.json", "model.safetensors"})
      std::filesystem::copy(kKimi + name, dir_.path() / name);
    dir_.write("tokenizer.json", tokenizer());
    dir_.write("chat_template.jinja", kTemplate);
  }
  Finished run(Arguments more) const {
    more.insert(more.begin(), {"run", dir_.path().string(), "--temp", "0", "-n", "8", "--ignore-eos"});
    return run_program(std::move(more));
  }
  TempDir dir_;
};

TEST_F(RunImage, TheTemplateAndThePromptSayTheSamePlace) {
  const Finished chat = run({"--chat", "-p", "Hi", "--image", kImages + "photo.jpg"});
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_THAT(chat.err, HasSubstr("[prompt "));
  const Finished marked = run(
      {"-p", "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>Hi", "--image", kImages + "photo.jpg"});
  const Finished first = run({"-p", "Hi", "--image", kImages + "photo.jpg"});
  EXPECT_EQ(chat.out, marked.out) << marked.err;
  EXPECT_EQ(first.out, marked.out) << first.err;
  EXPECT_EQ(first.err.substr(0, first.err.find(',')),
            marked.err.substr(0, marked.err.find(',')));  // "[prompt 25 tokens"
  EXPECT_NE(run({"-p", "Hi", "--image", kImages + "alpha.webp"}).out, first.out);
}

TEST_F(RunImage, TextAloneStillRuns) {
  const Finished result = run({"-p", "Hi"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[prompt 2 tokens"));
}

TEST_F(RunImage, ErrorsAreOneLine) {
  const auto error = [&](const std::string& image) {
    const Finished result = run({"-p", "Hi", "--image", image});
    EXPECT_EQ(result.code, 1);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  };
  EXPECT_THAT(error(kImages + "none.png"), HasSubstr("none.png"));
  EXPECT_THAT(error((dir_.path() / "tokenizer.json").string()), HasSubstr("this is no JPEG, PNG or WebP image"));
  EXPECT_THAT(error(dir_.write("cut.jpg", read_text_file(kImages + "photo.jpg").substr(0, 900)).string()),
              HasSubstr("the JPEG image is damaged"));
  const Finished blind = run_program({"run", kDemoModel, "-p", "Hi", "--image", kImages + "photo.png"});
  EXPECT_EQ(blind.code, 1);
  EXPECT_THAT(blind.err, HasSubstr("this model sees no images"));
}

}  // namespace
}  // namespace moesaic
