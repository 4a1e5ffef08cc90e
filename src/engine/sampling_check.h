// check_sampling: the ranges of SamplingParams, checked before a request is queued.
#pragma once

#include <cstdint>

#include "moesaic/sampling.h"
#include "moesaic/status.h"

namespace moesaic {

// invalid_argument for the first parameter out of range, with its name as the status's param; `vocab` is the number of
// token ids, so a bias must name an id in [0, vocab). sample() relies on parameters that passed here.
Status check_sampling(const SamplingParams& params, int64_t vocab);

}  // namespace moesaic
