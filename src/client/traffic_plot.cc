#include "client/traffic_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kWidth = 920, kHeight = 380, kTop = 56, kBottom = 330;
constexpr size_t kSlices = 60;

constexpr const char* kStyle =
    "<style>text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-size:15px;font-weight:600}"
    ".page{fill:#ffffff}.axis{stroke:#8c959f}.grid{stroke:#d8dee4}.line{fill:none;stroke-width:2}"
    ".c0{stroke:#0969da}.c1{stroke:#bc4c00}.c2{stroke:#1a7f37}.c3{stroke:#8250df}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.grid{stroke:#30363d}"
    ".c0{stroke:#58a6ff}.c1{stroke:#f0883e}.c2{stroke:#3fb950}.c3{stroke:#bc8cff}}</style>\n";

// A rectangle of the page and the values at its edges; y may be logarithmic.
struct Panel {
  double left, right, x_max, y_min, y_max;
  bool logarithmic = false;

  double x(double value) const { return left + (right - left) * value / x_max; }
  double y(double value) const {
    const double part = logarithmic ? std::log(std::max(value, y_min) / y_min) / std::log(y_max / y_min)
                                    : (value - y_min) / (y_max - y_min);
    return kBottom - (kBottom - kTop) * part;
  }
};

std::string escape(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '&') out += "&amp;";
    else if (static_cast<unsigned char>(c) >= ' ') out += c;
  }
  return out;
}

std::string label(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, escape(text));
}

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kind, x1, y1, x2,
                     y2);
}

// The smallest of 1, 2, 5 times a power of ten that is not below `value`.
double round_up(double value) {
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (double step : {1.0, 2.0, 5.0})
    if (step * power >= value) return step * power;
  return 10 * power;
}

std::string frame(const Panel& p, const std::vector<double>& y_ticks, const std::string& heading,
                  const std::string& x_name) {
  std::string out = label(p.left, kTop - 12, "start", heading);
  for (double tick : y_ticks) {
    out += line(p.left, p.y(tick), p.right, p.y(tick), "grid");
    out += label(p.left - 6, p.y(tick) + 4, "end", fmt::format("{:g}", tick));
  }
  for (int i = 0; i <= 4; ++i) {
    const double value = p.x_max * i / 4;
    out += label(p.x(value), kBottom + 17, "middle", fmt::format("{:.3g}", value));
  }
  out += line(p.left, kBottom, p.right, kBottom, "axis");
  return out + label((p.left + p.right) / 2, kBottom + 36, "middle", x_name);
}

std::string curve(const Panel& p, const std::vector<std::pair<double, double>>& points, int colour) {
  std::string out = fmt::format("<polyline class=\"line c{}\" points=\"", colour);
  for (const auto& [x, y] : points) out += fmt::format("{:.1f},{:.1f} ", p.x(x), p.y(y));
  return out + "\"/>\n";
}

struct Series {
  const char* name;
  std::vector<double> ms;  // sorted
};

std::vector<Series> latencies(const std::vector<RequestOutcome>& outcomes) {
  std::vector<Series> all = {{"TTFT", {}}, {"TPOT", {}}, {"ITL", {}}, {"E2E", {}}};
  for (const RequestOutcome& o : outcomes) {
    if (!o.ok()) continue;
    all[0].ms.push_back(o.ttft() * 1e3);
    if (o.output_tokens > 1) all[1].ms.push_back(o.tpot() * 1e3);
    for (size_t i = 1; i < o.tokens_at.size(); ++i) all[2].ms.push_back((o.tokens_at[i] - o.tokens_at[i - 1]) * 1e3);
    all[3].ms.push_back(o.latency() * 1e3);
  }
  for (Series& s : all) std::sort(s.ms.begin(), s.ms.end());
  return all;
}

std::string latency_panel(const std::vector<RequestOutcome>& outcomes) {
  const std::vector<Series> all = latencies(outcomes);
  double low = 1e9, high = 0.1;
  for (const Series& s : all) {
    if (s.ms.empty()) continue;
    low = std::min(low, percentile(s.ms, 1));
    high = std::max(high, s.ms.back());
  }
  low = std::pow(10, std::floor(std::log10(std::clamp(low, 0.01, high))));
  const Panel p{60, 440, 100, low, std::max(10 * low, std::pow(10, std::ceil(std::log10(high)))), true};
  std::vector<double> ticks;
  for (double tick = low; tick <= p.y_max * 1.01; tick *= 10) ticks.push_back(tick);
  std::string out = frame(p, ticks, "latency, ms (logarithmic)", "percentile");
  for (size_t i = 0; i < all.size(); ++i) {
    const double x = 240 + 54 * static_cast<double>(i);
    out += line(x, kTop - 16, x + 14, kTop - 16, fmt::format("line c{}", i).c_str());
    out += label(x + 18, kTop - 12, "start", all[i].name);
    std::vector<std::pair<double, double>> points;
    for (int q = 0; q <= 100 && !all[i].ms.empty(); ++q) points.emplace_back(q, percentile(all[i].ms, q));
    out += curve(p, points, static_cast<int>(i));
  }
  return out;
}

std::string throughput_panel(const std::vector<RequestOutcome>& outcomes, double duration) {
  const std::vector<double> slices = throughput_over_time(outcomes, duration, kSlices);
  const double top = round_up(std::max(1.0, *std::max_element(slices.begin(), slices.end())));
  const Panel p{530, 890, std::max(duration, 1e-3), 0, top};
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < slices.size(); ++i)
    points.emplace_back((static_cast<double>(i) + 0.5) * p.x_max / kSlices, slices[i]);
  return frame(p, {0, top / 4, top / 2, top * 3 / 4, top}, "generated tokens per second", "seconds") +
         curve(p, points, 0);
}

}  // namespace

std::string plot_traffic(const std::vector<RequestOutcome>& outcomes, const TrafficSummary& summary,
                         const std::string& title) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\">\n{2}"
      "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n<text class=\"title\" x=\"20\" y=\"24\">{3}</text>\n",
      kWidth, kHeight, kStyle, escape(title));
  out += latency_panel(outcomes) + throughput_panel(outcomes, summary.duration);
  return out + "</svg>\n";
}

}  // namespace moesaic
