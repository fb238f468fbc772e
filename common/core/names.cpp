#include "common/core/names.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace cleave {
std::size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> beforeLast(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t k = 0; k <= b.size(); ++k) row[k] = k;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    beforeLast = std::exchange(last, row);
    row[0] = i;
    for (std::size_t k = 1; k <= b.size(); ++k) {
      row[k] = std::min({last[k] + 1, row[k - 1] + 1, last[k - 1] + (a[i - 1] != b[k - 1])});
      if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1]) {
        row[k] = std::min(row[k], beforeLast[k - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

namespace {

bool differsOnlyInCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

std::string nearestName(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty()) return "";
  for (const std::string& candidate : candidates) {
    if (differsOnlyInCase(word, candidate)) return candidate;
  }
  const std::size_t max = std::max<std::size_t>(1, word.size() / 3);
  std::string nearest;
  std::size_t min = max + 1;
  for (const std::string& candidate : candidates) {
    // Compares lengths first: this rules out most candidates, and limits the cost of a long word
    // from a peer.
    const std::size_t gap =
        std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (gap >= min) continue;
    const std::size_t distance = editDistance(word, candidate);
    if (distance < min) {
      nearest = candidate;
      min = distance;
    }
  }
  return nearest;
}

bool matchesPattern(std::string_view name, std::string_view pattern) {
  std::size_t n = 0, p = 0;
  // Position of the last *, and end of the text that it matches.
  std::size_t star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++n;
      ++p;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

std::string knownNames(std::string_view word, const std::vector<std::string>& known,
                       const std::vector<std::string>& shown) {
  const std::string nearest = nearestName(word, known);
  std::string list;
  for (const std::string& name : shown.empty() ? known : shown) {
    list += (list.empty() ? "" : ", ") + name;
  }
  if (list.empty()) return "there are none";
  return (nearest.empty() ? "" : "did you mean " + nearest + "? ") + "use one of " + list;
}

}  // namespace cleave
