#include "common/predict/profile.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <stdexcept>
#include <string_view>

#include "common/core/durable.h"
#include "common/core/units.h"

namespace cleave {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 2;  // of the file format

UsageError otherProfile(const std::string& sentence, const std::string& more = "") {
  return {"other-profile", sentence,
          "make both profiles again: cleave-client profile with this configuration" + more +
              ", then cleave-server profile"};
}

// Returns `secondsOf` of a micro-batch with this many samples; see Profile::passSeconds().
template <typename SecondsOf>
double interpolated(const std::vector<SizeProfile>& sizes, std::uint32_t samples,
                    const SecondsOf& secondsOf) {
  const auto next = std::lower_bound(
      sizes.begin(), sizes.end(), samples,
      [](const SizeProfile& size, std::uint32_t value) { return size.samples < value; });
  const SizeProfile& above = next == sizes.end() ? sizes.back() : *next;
  if (next == sizes.begin() || next == sizes.end()) {
    return secondsOf(above) * samples / above.samples;
  }
  const SizeProfile& below = *std::prev(next);
  const double share =
      static_cast<double>(samples - below.samples) / (above.samples - below.samples);
  return secondsOf(below) + share * (secondsOf(above) - secondsOf(below));
}

double numberAt(const Json& object, const std::string& key) {
  const double value = object.at(key).get<double>();
  if (value >= 0 && std::isfinite(value)) return value;
  throw std::out_of_range(key + " is not a finite number of at least 0");
}

Json toJson(const SizeProfile& size) {
  Json json = {{"samples", size.samples}, {"loss_seconds", size.lossSeconds}};
  for (const PassSeconds& block : size.blocks) {
    json["forward_seconds"].push_back(block.forward);
    json["backward_seconds"].push_back(block.backward);
    json["weights_seconds"].push_back(block.weights);
  }
  return json;
}

SizeProfile sizeFrom(const Json& json, std::size_t blocks) {
  SizeProfile size{json.at("samples").get<std::uint32_t>(), {}, numberAt(json, "loss_seconds")};
  const auto forward = json.at("forward_seconds").get<std::vector<double>>();
  const auto backward = json.at("backward_seconds").get<std::vector<double>>();
  const auto weights = json.at("weights_seconds").get<std::vector<double>>();
  if (size.samples == 0) throw std::out_of_range("samples is 0");
  if (forward.size() != blocks || backward.size() != blocks || weights.size() != blocks) {
    throw std::out_of_range("the seconds of a block are missing");
  }
  for (std::size_t b = 0; b < blocks; ++b) {
    if (!(forward[b] >= 0 && weights[b] >= 0)) throw std::out_of_range("seconds are negative");
    if (!(weights[b] <= backward[b])) {
      throw std::out_of_range("a block's weights take longer than its backward");
    }
    size.blocks.push_back({forward[b], backward[b], weights[b]});
  }
  return size;
}

BlockProfile blockFrom(const Json& json) {
  return {json.at("name").get<std::string>(), numberAt(json, "output_bytes_per_sample"),
          numberAt(json, "parameter_bytes"), numberAt(json, "saved_bytes_per_sample"),
          numberAt(json, "update_seconds")};
}

Profile fromJson(const Json& json) {
  if (json.at("profile") != kVersion) {
    throw std::out_of_range("it has another version of the format");
  }
  Profile profile;
  profile.device = json.at("device").get<std::string>();
  profile.threads = json.at("threads").get<int>();
  profile.memoryBytes = numberAt(json, "memory_bytes");
  profile.batch = json.at("batch").get<std::uint32_t>();
  for (const Json& block : json.at("blocks")) profile.blocks.push_back(blockFrom(block));
  for (const Json& size : json.at("sizes")) {
    profile.sizes.push_back(sizeFrom(size, profile.blocks.size()));
    const std::size_t number = profile.sizes.size();
    if (number > 1 && profile.sizes[number - 2].samples >= profile.sizes[number - 1].samples) {
      throw std::out_of_range("its sizes are not in ascending order");
    }
  }
  if (profile.blocks.empty() || profile.sizes.empty()) {
    throw std::out_of_range("it has no blocks or no sizes");
  }
  for (const auto& [spec, codec] : json.at("codecs").items()) {
    profile.codecs[spec] = {numberAt(codec, "encode_seconds_per_byte"),
                            numberAt(codec, "decode_seconds_per_byte")};
  }
  profile.runSpec = json.at("run_spec");
  if (json.contains("graphs")) {
    profile.graphs = json.at("graphs").get<std::vector<std::string>>();
    if (profile.graphs.size() + 2 != profile.blocks.size()) {
      throw std::out_of_range("it has another number of graphs than of blocks between two cuts");
    }
  }
  return profile;
}

}  // namespace

// Returns the index of the first of these consecutive blocks.
std::size_t Profile::find(std::span<const std::string> names) const {
  const auto first = std::search(
      blocks.begin(), blocks.end(), names.begin(), names.end(),
      [](const BlockProfile& block, const std::string& name) { return block.name == name; });
  if (first == blocks.end() && !names.empty()) {
    throw otherProfile("a profile does not have the blocks from '" + names.front() + "' to '" +
                       names.back() + "'");
  }
  return static_cast<std::size_t>(first - blocks.begin());
}

PassSeconds Profile::passSeconds(std::span<const std::string> names, std::uint32_t samples) const {
  PassSeconds sum;
  const std::size_t first = find(names);
  for (std::size_t b = first; b < first + names.size(); ++b) {
    sum.forward += interpolated(sizes, samples,
                                [&](const SizeProfile& size) { return size.blocks[b].forward; });
    sum.backward += interpolated(sizes, samples,
                                 [&](const SizeProfile& size) { return size.blocks[b].backward; });
    sum.weights += interpolated(sizes, samples,
                                [&](const SizeProfile& size) { return size.blocks[b].weights; });
  }
  return sum;
}

double Profile::lossSeconds(std::uint32_t samples) const {
  return interpolated(sizes, samples, [](const SizeProfile& size) { return size.lossSeconds; });
}

double Profile::updateSeconds(std::span<const std::string> names) const {
  double sum = 0;
  const std::size_t first = find(names);
  for (std::size_t b = first; b < first + names.size(); ++b) sum += blocks[b].updateSeconds;
  return sum;
}

void Profile::checkBlock(const std::string& name, double outputBytes) const {
  for (const BlockProfile& block : blocks) {
    if (block.name != name || block.outputBytes == outputBytes) continue;
    throw otherProfile(
        fmt::format("the block '{}' of a profile has an output of {} per sample, "
                    "but that of the model has {}",
                    name, bytesText(block.outputBytes), bytesText(outputBytes)));
  }
}

const CodecProfile& Profile::codec(const std::string& spec) const {
  const auto found = codecs.find(spec);
  if (found == codecs.end())
    throw otherProfile("a profile does not have the codec '" + spec + "'", " and --codec " + spec);
  return found->second;
}

Profile readProfile(const std::string& path) {
  std::ifstream file(path);
  try {
    return fromJson(Json::parse(file));
  } catch (const std::exception& error) {
    throw UsageError("bad-profile",
                     path + (file.is_open() ? " is not a profile: " + std::string(error.what())
                                            : ": cannot be read"),
                     "make one with cleave-client profile, or on the server with cleave-server "
                     "profile");
  }
}

Json toJson(const Profile& profile) {
  Json json = {{"profile", kVersion},        {"device", profile.device},
               {"threads", profile.threads}, {"memory_bytes", profile.memoryBytes},
               {"batch", profile.batch},     {"blocks", Json::array()},
               {"sizes", Json::array()},     {"codecs", Json::object()}};
  for (const BlockProfile& block : profile.blocks) {
    json["blocks"].push_back({{"name", block.name},
                              {"output_bytes_per_sample", block.outputBytes},
                              {"parameter_bytes", block.parameterBytes},
                              {"saved_bytes_per_sample", block.savedBytes},
                              {"update_seconds", block.updateSeconds}});
  }
  for (const SizeProfile& size : profile.sizes) json["sizes"].push_back(toJson(size));
  for (const auto& [spec, codec] : profile.codecs) {
    json["codecs"][spec] = {{"encode_seconds_per_byte", codec.encodeSeconds},
                            {"decode_seconds_per_byte", codec.decodeSeconds}};
  }
  json["run_spec"] = profile.runSpec;
  if (!profile.graphs.empty()) json["graphs"] = profile.graphs;
  return json;
}

void writeProfile(const std::string& path, const Profile& profile) {
  writeFileDurably(path, toJson(profile).dump(2) + "\n");
}

std::string profileText(const Profile& profile) {
  std::size_t width = std::string_view("block").size();
  for (const BlockProfile& block : profile.blocks) width = std::max(width, block.name.size());
  const SizeProfile& size = profile.sizes.back();
  std::string text = fmt::format("{}, {}; a micro-batch of {}\n", profile.device,
                                 countText(static_cast<std::uint64_t>(profile.threads), "thread"),
                                 countText(size.samples, "sample"));
  text += fmt::format("  {:<{}}  {:>12}  {:>12}  {:>12}  {:>11}  {:>11}  {:>10}\n", "block", width,
                      "forward, ms", "backward, ms", "update, ms", "output", "saved", "parameters");
  for (std::size_t b = 0; b < profile.blocks.size(); ++b) {
    const BlockProfile& block = profile.blocks[b];
    text +=
        fmt::format("  {:<{}}  {:>12.3f}  {:>12.3f}  {:>12.3f}  {:>11}  {:>11}  {:>10}\n",
                    block.name, width, 1e3 * size.blocks[b].forward, 1e3 * size.blocks[b].backward,
                    1e3 * block.updateSeconds, bytesText(size.samples * block.outputBytes),
                    bytesText(size.samples * block.savedBytes), bytesText(block.parameterBytes));
  }
  for (const auto& [spec, codec] : profile.codecs) {
    if (codec.encodeSeconds <= 0) continue;
    text += fmt::format("  {}: encodes {}/s, decodes {}/s\n", spec,
                        bytesText(1 / codec.encodeSeconds), bytesText(1 / codec.decodeSeconds));
  }
  return text;
}

}  // namespace cleave
