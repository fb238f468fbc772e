// Permissions: the access file, which gives each identity its share of what the server allows. io
// thread only.
//
//   default: {models: [small_cnn], sessions: 1}     identities that are not listed; without it they
//                                                   are refused
//   clinic-a: {sessions: 4, memory_mib: 4096, disk_mib: 20480, rate: 100Mbit/s,
//              runs: [clinic-a-*]}
//
// Keys that an identity's entry omits are limited only by the server's own configuration. An
// identity is the name in a client's certificate; a client without TLS is "local".
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

// Maximum values of keys that the server's configuration also has.
inline constexpr std::int64_t kMaxDiskMiB = std::int64_t{1} << 30;
inline constexpr std::int64_t kMaxRunsPerHour = 1'000'000;
inline constexpr double kMaxIdleSeconds = 7 * 24 * 3600;

struct Allowance {
  std::optional<std::vector<std::string>> models;
  std::optional<std::uint32_t> sessions;
  std::optional<std::size_t> memoryBytes;
  std::optional<std::size_t> diskBytes;  // for records in the store
  std::optional<std::uint32_t> runsPerHour;
  std::optional<double> idleSeconds;
  double rate = 0;  // bytes per second for all its connections together; 0: no limit
  // Patterns (*, ?, [a-z]) of the run ids that this identity owns; it may use only these. Empty:
  // any run that no other identity has claimed.
  std::vector<std::string> runs;
};

class Access {
 public:
  // `file`: empty if everyone may do what the server allows. `models`: those that the server
  // allows; the file must not name others. Throws UsageError.
  Access(std::string file, std::vector<std::string> models);

  // Throws UsageError "unknown-identity". The reference is valid until reload().
  const Allowance& of(const std::string& identity) const;
  bool has(const std::string& identity) const { return find(identity) != nullptr; }
  // Throws UsageError "others-run" if the patterns assign the run to another identity.
  void checkRun(const std::string& identity, const std::string& runId) const;
  // Shared by all connections of an identity. Throws UsageError "unknown-identity".
  std::shared_ptr<Throttle> throttle(const std::string& identity);

  // Reloads the file and logs that. If it is invalid, the old contents stay in force. The rates of
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
