// POST /v1/responses.
#pragma once

#include "server/api_state.h"

namespace moesaic {

void answer_response(const std::shared_ptr<ApiState>& state, const ExchangePtr& exchange, ApiError& error);

}  // namespace moesaic
