// tools, tool_choice and parallel_tool_calls.
#pragma once

#include "server/fields.h"

namespace moesaic {

constexpr size_t kMaxTools = 128;

struct ToolFields {
  enum class Choice : uint8_t { none, automatic, required, named };
  Json tools;  // array as in the chat completions API, or null
  Choice choice = Choice::none;
  std::string name;  // of the tool that a named choice wants
  bool parallel = true;
};

ToolFields read_tools(const Fields& body);

}  // namespace moesaic
