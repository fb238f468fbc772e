// Identifies the samples of a data set, so that a later process notices if they have changed. No
// Torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "client/data/samples/dataset.h"
#include "common/files/sha256.h"

namespace cleave {

struct DataDigest {
  std::uint64_t samples = 0;  // 0: unknown, as in files written by earlier versions
  std::string sha256;         // in hex
  std::string content;        // likewise, of parts of some samples' contents; empty: unknown

  bool operator==(const DataDigest&) const = default;
};
// `sha256` covers the class names and, for each sample in the order of the set, what
// Dataset::identify() adds. That leaves out contents that would have to be read for this purpose;
// `content` covers what identifyContent() adds of kContentSamples evenly distributed samples.
inline constexpr std::uint32_t kContentSamples = 4096;
DataDigest digestOf(const Dataset& data);
// How a set with the digest `now` differs from the earlier one, for a sentence such as "the set has
// 98 samples, but had 100 at the start", or "the set has other samples … than at the start". Empty
// if it does not, or if the earlier one is unknown.
std::string changeSince(const DataDigest& before, const DataDigest& now);

nlohmann::json toJson(const DataDigest& digest);
// `json` may be null. Throws nlohmann::json::exception.
DataDigest dataDigestFrom(const nlohmann::json& json);

// For implementations of Dataset::identify(): adds a number, or values that are stored in memory.
template <typename T>
void addValue(Sha256& digest, const T& value) {
  digest.add(std::as_bytes(std::span(&value, 1)));
}
// Adds the text and its length.
void addText(Sha256& digest, std::string_view text);

// For implementations of Dataset::identifyContent(): the parts of a content of `size` bytes that
// are added. The end of compressed images depends on all of their pixels, but may be metadata.
struct ContentPart {
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
};
std::array<ContentPart, 2> contentParts(std::uint64_t size);
// Adds these parts.
void addPart(Sha256& digest, std::span<const std::byte> content);

}  // namespace cleave
