// /tokenize, /detokenize and /apply-template.
#pragma once

#include "server/api_state.h"

namespace moesaic {

// vLLM's forms (prompt or messages) and llama.cpp's (content); one answer for all.
void answer_tokenize(const ApiState& state, const ExchangePtr& exchange, ApiError& error);
void answer_detokenize(const ApiState& state, const ExchangePtr& exchange, ApiError& error);
void answer_template(const ApiState& state, const ExchangePtr& exchange, ApiError& error);

}  // namespace moesaic
