#include "client/data/data_digest.h"

#include "common/core/units.h"

namespace cleave {

DataDigest digestOf(const Dataset& data) {
  Sha256 digest;
  for (const std::string& name : data.classNames()) addText(digest, name);
  for (std::uint32_t index = 0; index < data.size(); ++index) data.identify(index, digest);
  return {data.size(), hexOf(digest.finish())};
}

std::string changeSince(const DataDigest& before, const DataDigest& now) {
  if (before.samples == 0 || before == now) return "";
  if (before.samples != now.samples)
    return "has " + countText(now.samples, "sample") + ", but had " +
           std::to_string(before.samples);
  return "has other samples, labels or file sizes than";
}

nlohmann::json toJson(const DataDigest& digest) {
  return {{"samples", digest.samples}, {"sha256", digest.sha256}};
}

DataDigest dataDigestFrom(const nlohmann::json& json) {
  if (json.is_null()) return {};
  return {json.at("samples"), json.at("sha256")};
}

void addText(Sha256& digest, std::string_view text) {
  addValue(digest, std::uint64_t{text.size()});
  digest.add(std::as_bytes(std::span(text)));
}

}  // namespace cleave
