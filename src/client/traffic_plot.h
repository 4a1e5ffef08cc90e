// A drawing of a load test: latencies over their percentiles, and throughput over time.
#pragma once

#include <string>
#include <vector>

#include "client/traffic_summary.h"

namespace moesaic {

// An SVG file of its own: no scripts, no fonts to load; colours follow the reader's light or dark scheme.
std::string plot_traffic(const std::vector<RequestOutcome>& outcomes, const TrafficSummary& summary,
                         const std::string& title);

}  // namespace moesaic
