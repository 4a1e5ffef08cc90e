// Feeds arbitrary bytes to the tokenizer.json loader. A file that loads has to encode and decode anything, and the
// streamed text has to equal the whole.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

using namespace moesaic;

void exercise(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<TextSegment> segments = {{text.substr(0, text.size() / 2)}, {text.substr(text.size() / 2), true}};
  std::vector<int32_t> ids = tokenizer.encode(text, {.add_special_tokens = true});
  for (const int32_t id : tokenizer.encode_segments(segments)) ids.push_back(id);
  for (const int32_t id : ids) {
    CHECK(id >= 0 && id < tokenizer.vocab_size(), "id {} of {}", id, tokenizer.vocab_size());
    CHECK(tokenizer.token_bytes(id).has_value(), "id {}", id);
  }
  for (const bool skip : {false, true}) {
    Detokenizer stream(tokenizer, skip);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.push(id);
    streamed += stream.flush();
    CHECK(streamed == tokenizer.decode(ids, skip));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = parse_tokenizer(input, "fuzz");
  } catch (const Error&) {
    return 0;
  }
  exercise(*tokenizer, "Hello  world's <s>ab ab\n12345 \u4f60\u597d e\u0301 \U0001F600\xFF word ");
  exercise(*tokenizer, input.substr(0, 200));
  return 0;
}
