// The access file, which lists each identity's permissions and limits. io thread only.
//
//   default: {models: [small_cnn], sessions: 1}     identities that are not listed; without it they
//                                                   are refused
//   clinic-a: {sessions: 4, memory_mib: 4096, disk_mib: 20480, rate: 100Mbit/s,
//              runs: [clinic-a-*]}
//
// For keys that an identity's entry omits, only the server's configuration applies. An identity is
// the name in a client's certificate; a client without TLS is "local".
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/error.h"
#include "common/net/throttle.h"

namespace cleave {

// Maximum values of keys that also exist in the server's configuration.
inline constexpr std::int64_t kMaxDiskMiB = std::int64_t{1} << 30;
inline constexpr std::int64_t kMaxRunsPerHour = 1'000'000;
inline constexpr double kMaxIdleSeconds = 7 * 24 * 3600;

struct Allowance {
  std::optional<std::vector<std::string>> models;
  std::optional<std::uint32_t> sessions;
  std::optional<std::size_t> memoryBytes;
  std::optional<std::size_t> diskBytes;  // maximum size of its records in the store
  std::optional<std::uint32_t> runsPerHour;
  std::optional<double> idleSeconds;
  double rate = 0;  // bytes per second for all its connections together; 0: no limit
  // Patterns (*, ?, [a-z]) of the run ids that this identity may use and that no other identity may
  // use. Empty: any run that no other identity has claimed.
  std::vector<std::string> runs;
};

class Access {
 public:
  // If `file` is empty, every identity has the server's own limits. `models`: the models that the
  // server allows; the file must not name others. Throws UsageError.
  Access(std::string file, std::vector<std::string> models);

  // Throws UsageError "unknown-identity". The reference is valid until reload().
  const Allowance& of(const std::string& identity) const;
  bool has(const std::string& identity) const { return find(identity) != nullptr; }
  // Whether the file has an entry of this name; `default` does not count.
  bool lists(const std::string& identity) const {
    return identity != "default" && allowances_.contains(identity);
  }
  // Throws UsageError "others-run" if the patterns assign the run to another identity.
  void checkRun(const std::string& identity, const std::string& runId) const;
  // Returns the throttle that all connections of an identity share. Throws UsageError
  // "unknown-identity".
  std::shared_ptr<Throttle> throttle(const std::string& identity);

  // Reloads the file and logs that. If it is invalid, the old contents still apply. The rates of
  // open sessions change immediately; everything else applies to new sessions. The caller ends the
  // sessions whose identity is no longer listed.
  void reload();

 private:
  using Allowances = std::map<std::string, Allowance>;
  Allowances read() const;
  const Allowance* find(const std::string& identity) const;

  const std::string file_;
  const std::vector<std::string> models_;
  Allowances allowances_;
  std::map<std::string, std::weak_ptr<Throttle>> throttles_;
};

}  // namespace cleave
