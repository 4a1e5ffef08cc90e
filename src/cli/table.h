// Table: aligned columns on stdout, the first left-aligned, the others right-aligned.
#pragma once

#include <string>
#include <vector>

namespace moesaic {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : columns_(header.size()) { rows_.push_back(std::move(header)); }
  void add(std::vector<std::string> row);
  void print() const;

 private:
  size_t columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace moesaic
