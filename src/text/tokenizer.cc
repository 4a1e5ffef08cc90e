#include "text/tokenizer.h"

#include "base/mapped_file.h"
#include "text/tokenizer_json.h"
#include "text/unicode.h"

namespace moesaic {

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const TextSegment segment{text, !options.parse_special};
  return encode_segments({&segment, 1}, options.add_special_tokens);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  DecodeState state;
  for (const int32_t id : ids)
    if (!skip_special_tokens || !is_special(id)) append_decoded(id, state, bytes);
  return replace_invalid_utf8(bytes);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& tokenizer_json) {
  const MappedFile file = MappedFile::open(tokenizer_json);
  return parse_tokenizer({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                         tokenizer_json.string());
}

std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view json, const std::string& where) {
  const Json file = parse_json(json, where);
  return std::make_unique<JsonTokenizer>(json_object(file, where), where);
}

}  // namespace moesaic
