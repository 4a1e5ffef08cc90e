#include "text/tokenizer_normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include "tokenizer_fixtures.h"

namespace moesaic {
namespace {

std::string run(const std::string& json, std::string_view text) {
  const Json value = parse_json(json, "test");
  RegexScratch scratch;
  return Normalizer(&value, "test").run(text, scratch);
}

TEST(Normalizer, Forms) {
  const std::string text = "\uFB01 e\u0301 \u212B \uAC00";
  EXPECT_EQ(run(R"({"type":"NFC"})", text), "\uFB01 \u00e9 \u00c5 \uAC00");
  EXPECT_EQ(run(R"({"type":"NFD"})", text), "\uFB01 e\u0301 A\u030A \u1100\u1161");
  EXPECT_EQ(run(R"({"type":"NFKC"})", text), "fi \u00e9 \u00c5 \uAC00");
  EXPECT_EQ(run(R"({"type":"NFKD"})", text), "fi e\u0301 A\u030A \u1100\u1161");
  EXPECT_EQ(run(R"({"type":"NFC"})", std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Normalizer, Others) {
  EXPECT_EQ(run(R"({"type":"Lowercase"})", "A\u0130\u00c9\u03a3"), "ai\u0307\u00e9\u03c3");
  EXPECT_EQ(run(R"({"type":"Sequence","normalizers":[{"type":"NFD"},{"type":"StripAccents"}]})", "\u00e9a\u0301"),
            "ea");
  EXPECT_EQ(run(R"({"type":"Strip","strip_left":true,"strip_right":true})", " \u3000a b\n"), "a b");
  EXPECT_EQ(run(R"({"type":"Strip","strip_left":false,"strip_right":true})", " \n"), "");
  EXPECT_EQ(run(R"({"type":"Prepend","prepend":"\u2581"})", "a"),
            "\u2581"
            "a");
  EXPECT_EQ(run(R"({"type":"Prepend","prepend":"\u2581"})", ""), "");
  EXPECT_EQ(run(R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"})", " a "),
            "\u2581"
            "a\u2581");
  EXPECT_EQ(run(R"({"type":"Replace","pattern":{"Regex":"\\s+"},"content":" "})", "a \n b"), "a b");
}

// The fast path for text that NFC leaves alone agrees with utf8proc, for every character in pairs with marks.
TEST(Normalizer, NfcFastPathAgrees) {
  for (char32_t code = 1; code < 0x20000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text = "A";
    append_utf8(text, code);
    append_utf8(text, code);
    text += "\uAC00\u3042";
    utf8proc_uint8_t* slow = utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
    ASSERT_NE(slow, nullptr);
    EXPECT_EQ(normalize(text, NormalForm::nfc), reinterpret_cast<const char*>(slow)) << static_cast<uint32_t>(code);
    std::free(slow);
  }
}

}  // namespace
}  // namespace moesaic
