#include "common/cohort/member_part.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "common/core/error.h"
#include "proto/wire.pb.h"

namespace cleave {

SharedBytes toBytes(const MemberPart& part) {
  wire::MemberPart proto;
  proto.set_values(std::string(reinterpret_cast<const char*>(part.values.data()),
                               sizeof(float) * part.values.size()));
  proto.set_samples(part.metrics.samples);
  for (const auto& [name, sum] : part.metrics.sums) (*proto.mutable_sums())[name] = sum;
  std::vector<std::byte> bytes(proto.ByteSizeLong());
  proto.SerializeToArray(bytes.data(), static_cast<int>(bytes.size()));
  return std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

MemberPart partFromBytes(std::span<const std::byte> bytes) {
  wire::MemberPart proto;
  const bool fits = bytes.size() <= static_cast<std::size_t>(std::numeric_limits<int>::max()) &&
                    proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) &&
                    proto.values().size() % sizeof(float) == 0;
  if (!fits) throw ProtocolError("bad-metadata", "the part of a member cannot be parsed");
  MemberPart part;
  part.values.resize(proto.values().size() / sizeof(float));
  std::memcpy(part.values.data(), proto.values().data(), proto.values().size());
  part.metrics.samples = proto.samples();
  for (const auto& [name, sum] : proto.sums()) part.metrics.sums[name] = sum;
  return part;
}

SharedBytes sumOfParts(const std::vector<Blob>& parts, std::size_t values,
                       const std::vector<std::string>& names) {
  constexpr std::size_t kMaxMetrics = 1024;
  MemberPart sum;
  for (std::size_t m = 0; m < parts.size(); ++m) {
    MemberPart part = partFromBytes(parts[m].bytes);
    const bool isFirst = m == 0;
    const std::size_t expected = isFirst ? part.values.size() : sum.values.size();
    if (part.values.size() != expected || (expected != 0 && expected != values) ||
        part.metrics.sums.size() > kMaxMetrics) {
      throw ProtocolError("bad-part",
                          "the part of " + names[m] + " has " + std::to_string(part.values.size()) +
                              " values instead of " + std::to_string(values),
                          "install the same version of Cleave for all members");
    }
    if (isFirst) {
      sum = std::move(part);
      continue;
    }
    for (std::size_t v = 0; v < expected; ++v) sum.values[v] += part.values[v];
    sum.metrics.add(part.metrics);
  }
  return toBytes(sum);
}

}  // namespace cleave
