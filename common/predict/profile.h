// What the blocks of a model cost on one machine: times, bytes and memory, as `profile` measures
// them. Also reads and writes the profile files of `profile`, which are JSON.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace cleave {

struct BlockProfile {
  std::string name;
  double outputBytes = 0;  // per sample: the tensors that the next block receives
  double parameterBytes = 0;
  double savedBytes = 0;     // per sample: what forward keeps in memory for backward
  double updateSeconds = 0;  // of the optimizer, once per step
};

// Of a block, or of several consecutive blocks.
struct PassSeconds {
  double forward = 0, backward = 0;
  double weights = 0;  // see BodyCosts
};

// Times of a micro-batch of this size.
struct SizeProfile {
  std::uint32_t samples = 0;
  std::vector<PassSeconds> blocks;  // in the order of Profile::blocks
  double lossSeconds = 0;           // loss and metrics, forward and backward; 0 on servers
};

// Seconds per byte of a tensor before it is encoded.
struct CodecProfile {
  double encodeSeconds = 0, decodeSeconds = 0;
};

struct Profile {
  std::string device;  // such as "the CPU"
  int threads = 1;
  double memoryBytes = 0;                      // what a run may use at most
  std::uint32_t batch = 0;                     // samples per batch
  std::vector<BlockProfile> blocks;            // consecutive blocks of the model, in its order
  std::vector<SizeProfile> sizes;              // ascending, at least one
  std::map<std::string, CodecProfile> codecs;  // by spec
  // The run spec of the profiled configuration, from which a server makes its own profile.
  nlohmann::ordered_json runSpec;
  // The graphs of an exported model's blocks, except the first and the last one, as in runSpec.
  std::vector<std::string> graphs;

  // Return the seconds of consecutive blocks for a micro-batch of this size, of their loss, and of
  // their update. Between two measured sizes they are interpolated; beyond them, seconds are
  // proportional to samples. Throw UsageError "other-profile" unless the profile has the blocks.
  PassSeconds passSeconds(std::span<const std::string> names, std::uint32_t samples) const;
  double lossSeconds(std::uint32_t samples) const;
  double updateSeconds(std::span<const std::string> names) const;
  // Throws UsageError "other-profile" if the profile has a block of this name with another size.
  void checkBlock(const std::string& name, double outputBytes) const;
  // Throws UsageError "other-profile" unless the codec was measured.
  const CodecProfile& codec(const std::string& spec) const;

 private:
  std::size_t find(std::span<const std::string> names) const;
};

// Throws UsageError "bad-profile".
Profile readProfile(const std::string& path);
// Throws RunError.
void writeProfile(const std::string& path, const Profile& profile);

// The content of a profile file.
nlohmann::ordered_json toJson(const Profile& profile);
// A table of the blocks, for the largest micro-batch, and of the codecs.
std::string profileText(const Profile& profile);

}  // namespace cleave
