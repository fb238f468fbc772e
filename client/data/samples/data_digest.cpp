#include "client/data/samples/data_digest.h"

#include "client/data/samples/inspect.h"
#include "common/core/units.h"

namespace cleave {

DataDigest digestOf(const Dataset& data) {
  Sha256 digest;
  for (const std::string& name : data.classNames()) addText(digest, name);
  for (std::uint32_t index = 0; index < data.size(); ++index) data.identify(index, digest);
  Sha256 content;
  for (const std::uint32_t index : spreadIndices(data.size(), kContentSamples))
    data.identifyContent(index, content);
  return {data.size(), hexOf(digest.finish()), hexOf(content.finish())};
}

std::string changeSince(const DataDigest& before, const DataDigest& now) {
  if (before.samples == 0) return "";
  if (before.samples != now.samples)
    return "has " + countText(now.samples, "sample") + ", but had " +
           std::to_string(before.samples);
  if (before.sha256 != now.sha256) return "has other samples, labels or file sizes than";
  if (before.content.empty() || before.content == now.content) return "";
  return "has other content in its samples than";
}

nlohmann::json toJson(const DataDigest& digest) {
  return {{"samples", digest.samples}, {"sha256", digest.sha256}, {"content", digest.content}};
}

DataDigest dataDigestFrom(const nlohmann::json& json) {
  if (json.is_null()) return {};
  return {json.at("samples"), json.at("sha256"), json.value("content", "")};
}

void addText(Sha256& digest, std::string_view text) {
  addValue(digest, std::uint64_t{text.size()});
  digest.add(std::as_bytes(std::span(text)));
}

std::array<ContentPart, 2> contentParts(std::uint64_t size) {
  constexpr std::size_t kPart = 2048;
  if (size <= 2 * kPart) return {{{0, static_cast<std::size_t>(size)}, {size, 0}}};
  return {{{size / 2 - kPart / 2, kPart}, {size - kPart, kPart}}};
}

void addPart(Sha256& digest, std::span<const std::byte> content) {
  for (const ContentPart& part : contentParts(content.size()))
    digest.add(content.subspan(static_cast<std::size_t>(part.offset), part.bytes));
}

}  // namespace cleave
