// The chat formats as tests know them: markers, and how a prompt ends.
#pragma once

#include "text/answer_fixtures.h"

namespace moesaic {

inline const FormatCase kHarmony = {
    ChatFormat::harmony,
    {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"},
    "<|start|>user<|message|>Hi<|end|><|start|>assistant"};
inline const std::vector<std::string> kThinkTokens = {"<think>", "</think>", "<|user|>", "<|eos|>"};
inline const FormatCase kThinkCase = {ChatFormat::think, kThinkTokens, "<|user|>Hi"};
inline const FormatCase kQwen = {
    ChatFormat::think, {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"}, "<|im_end|>Hi"};
inline const FormatCase kPlain = {ChatFormat::plain, {"<|eos|>"}, ""};
inline const std::vector<std::string> kDeepseekTokens = {"<think>",
                                                         "</think>",
                                                         "<｜tool▁calls▁begin｜>",
                                                         "<｜tool▁calls▁end｜>",
                                                         "<｜tool▁call▁begin｜>",
                                                         "<｜tool▁call▁end｜>",
                                                         "<｜tool▁sep｜>",
                                                         "<｜Assistant｜>",
                                                         "<｜end▁of▁sentence｜>"};
inline const FormatCase kV3 = {ChatFormat::deepseek_v3, kDeepseekTokens, "<｜Assistant｜>"};
inline const FormatCase kV31 = {ChatFormat::deepseek_v31, kDeepseekTokens, "<｜Assistant｜></think>"};
inline const std::vector<std::string> kDsmlTokens = {"<think>", "</think>", "｜DSML｜", "<｜Assistant｜>",
                                                     "<｜end▁of▁sentence｜>"};
inline const FormatCase kV32 = {ChatFormat::deepseek_v32, kDsmlTokens, "<｜Assistant｜></think>"};
inline const FormatCase kV4 = {ChatFormat::deepseek_v4, kDsmlTokens, "<｜Assistant｜><think>"};
inline const FormatCase kK2 = {
    ChatFormat::kimi_k2,
    {"<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
     "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_end|>", "<|im_middle|>"},
    "<|im_middle|>"};
inline const FormatCase kK3 = {ChatFormat::kimi_k3,
                               {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]"},
                               "<|end_of_msg|><|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>"};
inline const FormatCase kGlm = {ChatFormat::glm,
                                {"<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
                                 "<arg_value>", "</arg_value>", "<|assistant|>", "<|user|>"},
                                "<|assistant|><think>"};

inline const AnswerTokens& tokens_of(const FormatCase& c) {
  static std::map<std::vector<std::string>, std::unique_ptr<AnswerTokens>> made;
  std::unique_ptr<AnswerTokens>& tokens = made[c.markers];
  if (!tokens) tokens = std::make_unique<AnswerTokens>(c.markers);
  return *tokens;
}

}  // namespace moesaic
