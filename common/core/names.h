// Names that users write: looking them up in tables, and suggestions for names that do not exist.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/core/error.h"

namespace cleave {

// Insertions, deletions, replacements and swaps of neighbouring letters (optimal string alignment
// distance).
std::size_t editDistance(std::string_view a, std::string_view b);

// The candidate with the smallest edit distance to `word`, if that is small enough for a typo;
// otherwise empty.
std::string nearestName(std::string_view word, const std::vector<std::string>& candidates);

// A hint for an unknown name: "did you mean small_cnn? use one of small_cnn, mlp". If `shown` is
// not empty, it is listed instead of `known`.
std::string knownNames(std::string_view word, const std::vector<std::string>& known,
                       const std::vector<std::string>& shown = {});

// Whether the whole name fits a pattern, in which * is any text and ? any character.
bool matchesPattern(std::string_view name, std::string_view pattern);

// The row of `table` with that `name`. Throws UsageError(`code`, "'word' is not `what`") with the
// names as its hint; `show` gives the text that is listed for a row.
template <typename Table, typename Show>
const auto& findByName(const Table& table, std::string_view word, const char* code,
                       std::string_view what, Show show) {
  std::vector<std::string> known, shown;
  for (const auto& row : table) {
    if (row.name == word) return row;
    known.emplace_back(row.name);
    shown.push_back(show(row));
  }
  throw UsageError(code, "'" + std::string(word) + "' is not " + std::string(what),
                   knownNames(word, known, shown));
}

template <typename Table>
const auto& findByName(const Table& table, std::string_view word, const char* code,
                       std::string_view what) {
  return findByName(table, word, code, what, [](const auto& row) { return std::string(row.name); });
}

}  // namespace cleave
