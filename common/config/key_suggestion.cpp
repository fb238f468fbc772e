#include "common/config/key_suggestion.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include "common/core/names.h"

namespace cleave {
namespace {

using Parts = std::vector<std::string>;

// In letters that were typed wrong; nullopt: it is another name.
using Distance = std::optional<std::size_t>;

constexpr std::size_t kMissing = 1;  // a word or a section

std::string lowerCase(std::string_view text) {
  std::string lower;
  for (const char c : text) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
}

Parts splitAt(std::string_view text, std::string_view separators) {
  Parts parts(1);
  for (const char c : text) {
    if (separators.find(c) == std::string_view::npos) {
      parts.back() += c;
    } else {
      parts.emplace_back();
    }
  }
  return parts;
}

std::string joined(const Parts& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

Distance distanceOfWords(const std::string& a, const std::string& b) {
  if (a == b) return 0;
  const std::size_t shorter = std::min(a.size(), b.size()), longer = std::max(a.size(), b.size());
  constexpr std::size_t kShort = 2;  // words of which any letter may be another word
  if (longer <= kShort) return std::nullopt;
  const std::size_t max = std::max<std::size_t>(1, longer / 4);
  if (longer - shorter <= max) {
    const std::size_t distance = editDistance(a, b);
    if (distance <= max) return distance;
  }
  constexpr std::size_t kMinBeginning = 4;  // "batchsize", "batch"
  const bool beginAlike = shorter >= kMinBeginning && a.compare(0, shorter, b, 0, shorter) == 0;
  return beginAlike ? Distance(kMissing + 1) : std::nullopt;
}

// "every" and "every_epochs", or the sections "train" and "train.optimizer": one of the two may
// have parts that the other lacks.
Distance distanceOfParts(const Parts& one, const Parts& other,
                         Distance (*distanceOf)(const std::string&, const std::string&)) {
  const Parts& few = one.size() <= other.size() ? one : other;
  const Parts& many = one.size() <= other.size() ? other : one;
  std::size_t sum = 0, next = 0;
  for (const std::string& part : many) {
    const Distance near = next < few.size() ? distanceOf(few[next], part) : std::nullopt;
    sum += near.value_or(kMissing);
    next += near ? 1 : 0;
  }
  return next == few.size() ? Distance(sum) : std::nullopt;
}

bool areInitials(const std::string& letters, const Parts& words) {
  if (words.size() < 2 || letters.size() != words.size()) return false;
  return std::equal(letters.begin(), letters.end(), words.begin(),
                    [](char letter, const std::string& word) { return word.starts_with(letter); });
}

Distance distanceOfNames(const std::string& a, const std::string& b) {
  const Parts one = splitAt(lowerCase(a), "_-"), other = splitAt(lowerCase(b), "_-");
  if (areInitials(joined(one), other) || areInitials(joined(other), one)) return kMissing;
  if (one.size() != other.size()) {  // "learningrate", "learning_rate"
    const Distance whole = distanceOfWords(joined(one), joined(other));
    if (whole) return whole;
  }
  return distanceOfParts(one, other, distanceOfWords);
}

Distance distanceOfKeys(const std::string& a, const std::string& b) {
  Parts one = splitAt(a, "."), other = splitAt(b, ".");
  // "train_batch", "train.batch"
  if (joined(splitAt(a, "._-")) == joined(splitAt(b, "._-"))) return 1;
  const Distance last = distanceOfNames(one.back(), other.back());
  if (!last) return std::nullopt;
  one.pop_back();
  other.pop_back();
  const Distance sections = distanceOfParts(one, other, distanceOfNames);
  return sections ? Distance(*last + *sections) : std::nullopt;
}

// "learning_rate_schedule" for "lr_schedule".
std::string writtenOut(const std::string& path) {
  static constexpr std::pair<std::string_view, std::string_view> kShort[] = {
      {"lr", "learning_rate"}, {"wd", "weight_decay"}};
  std::string whole;
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= path.size(); ++at) {
    if (at < path.size() && std::string_view("._-").find(path[at]) == std::string_view::npos) {
      continue;
    }
    std::string_view word = std::string_view(path).substr(begin, at - begin);
    for (const auto& [abbreviation, meaning] : kShort) {
      if (word == abbreviation) word = meaning;
    }
    whole += word;
    if (at < path.size()) whole += path[at];
    begin = at + 1;
  }
  return whole;
}

// The only candidate with the same last name, for a key in the wrong section.
std::string elsewhere(const std::string& path, const std::vector<std::string>& candidates) {
  const auto lastName = [](const std::string& key) { return key.substr(key.rfind('.') + 1); };
  std::string found;
  for (const std::string& candidate : candidates) {
    if (lastName(candidate) != lastName(path)) continue;
    if (!found.empty()) return "";
    found = candidate;
  }
  return found;
}

}  // namespace

std::string nearestKey(const std::string& typed, const std::vector<std::string>& candidates) {
  constexpr std::size_t kMaxPath = 200;  // bytes; limits the cost
  std::string nearest;
  Distance min;
  if (typed.empty() || typed.size() > kMaxPath) return nearest;
  const std::string path = writtenOut(typed);
  for (const std::string& candidate : candidates) {
    const Distance distance = distanceOfKeys(path, candidate);
    if (!distance) continue;
    const bool isNearer =
        !min || *distance < *min ||
        (*distance == *min && editDistance(path, candidate) < editDistance(path, nearest));
    if (!isNearer) continue;
    min = distance;
    nearest = candidate;
  }
  return nearest.empty() ? elsewhere(path, candidates) : nearest;
}

}  // namespace cleave
