#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"

namespace moesaic {

void Table::add(std::vector<std::string> row) {
  CHECK(row.size() == columns_, "{} cells in {} columns", row.size(), columns_);
  rows_.push_back(std::move(row));
}

void Table::print() const {
  std::vector<size_t> widths(columns_, 0);
  for (const auto& row : rows_)
    for (size_t i = 0; i < columns_; ++i) widths[i] = std::max(widths[i], row[i].size());
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t i = 0; i < columns_; ++i)
      line += i == 0 ? fmt::format("{:<{}}", rows_[r][i], widths[i]) : fmt::format("  {:>{}}", rows_[r][i], widths[i]);
    line.resize(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
    if (r > 0) continue;
    std::string rule;
    for (size_t i = 0; i < columns_; ++i) rule += (i > 0 ? "  " : "") + std::string(widths[i], '-');
    fmt::print("{}\n", rule);
  }
  std::fflush(stdout);
}

}  // namespace moesaic
