#include "client/train/run_spent.h"

#include <utility>

namespace cleave {
namespace {

constexpr std::pair<const char*, std::uint64_t LinkTotals::*> kCounts[] = {
    {"raw_up", &LinkTotals::rawUp},         {"raw_down", &LinkTotals::rawDown},
    {"wire_up", &LinkTotals::wireUp},       {"wire_down", &LinkTotals::wireDown},
    {"blob_up", &LinkTotals::blobUp},       {"blob_down", &LinkTotals::blobDown},
    {"control_up", &LinkTotals::controlUp}, {"control_down", &LinkTotals::controlDown},
    {"reconnects", &LinkTotals::reconnects}};
constexpr std::pair<const char*, double LinkTotals::*> kSeconds[] = {
    {"encode_seconds", &LinkTotals::encodeSeconds},
    {"decode_seconds", &LinkTotals::decodeSeconds},
    {"offline_seconds", &LinkTotals::offlineSeconds}};
constexpr std::pair<const char*, double LinkTotals::*> kPeaks[] = {
    {"peak_up", &LinkTotals::peakUp}, {"peak_down", &LinkTotals::peakDown}};

}  // namespace

void RunSpent::add(double moreSeconds, const LinkTotals& more) {
  seconds += moreSeconds;
  totals += more;
}

nlohmann::json toJson(const RunSpent& spent) {
  nlohmann::json json = {{"seconds", spent.seconds}};
  for (const auto& [name, count] : kCounts) json[name] = spent.totals.*count;
  for (const auto& [name, each] : kSeconds) json[name] = spent.totals.*each;
  for (const auto& [name, peak] : kPeaks) json[name] = spent.totals.*peak;
  return json;
}

RunSpent spentFromJson(const nlohmann::json& json) {
  RunSpent spent;
  spent.seconds = json.at("seconds");
  for (const auto& [name, count] : kCounts) spent.totals.*count = json.at(name);
  for (const auto& [name, each] : kSeconds) spent.totals.*each = json.at(name);
  for (const auto& [name, peak] : kPeaks) spent.totals.*peak = json.at(name);
  return spent;
}

}  // namespace cleave
