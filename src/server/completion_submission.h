// From a checked text completion request to what the engine takes.
#pragma once

#include "server/api_state.h"
#include "server/completion_answer.h"

namespace moesaic {

// One request per prompt and choice, in the order of the answer's choices; fills in what `view` shows of the prompts.
std::vector<Request> completion_engine_requests(const ApiState& state, const CompletionRequest& completion,
                                                CompletionView& view, ApiError& error);

}  // namespace moesaic
