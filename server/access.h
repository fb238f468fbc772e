// Who may do what: the access file, which gives each identity its share of what the server allows.
// io thread only.
//
//   default: {models: [small_cnn], sessions: 1}     identities that are not listed; without it they
//                                                   are refused
//   clinic-a: {sessions: 4, memory_mib: 4096, disk_mib: 20480, rate: 100Mbit/s,
//              runs: [clinic-a-*]}
//
// Keys that an identity's entry leaves out are limited by the server's own configuration alone. An
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

// Maxima of keys that the server's configuration has too.
inline constexpr std::int64_t kMostDiskMiB = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostRunsPerHour = 1'000'000;
inline constexpr double kMostIdleSeconds = 7 * 24 * 3600;

struct Allowance {
  std::optional<std::vector<std::string>> models;
  std::optional<std::uint32_t> sessions;
  std::optional<std::size_t> memoryBytes;
  std::optional<std::size_t> diskBytes;  // of records in the store
  std::optional<std::uint32_t> runsPerHour;
  std::optional<double> idleSeconds;
  double rate = 0;  // bytes a second, of all its connections together; 0: no limit
  // Patterns (*, ?, [a-z]) of run ids that are this identity's, and the only ones it may use;
  // empty: any that is nobody's.
  std::vector<std::string> runs;
};

class Access {
 public:
  // `file`: empty where everyone may do what the server allows. `models`: those the server allows;
  // the file may name no others. Throws UsageError.
  Access(std::string file, std::vector<std::string> models);

  // Throws UsageError "unknown-identity". Valid until reload().
  const Allowance& of(const std::string& identity) const;
  // Throws UsageError "others-run" where the patterns give the run to others.
  void checkRun(const std::string& identity, const std::string& runId) const;
  // One for all connections of an identity. Throws UsageError "unknown-identity".
  std::shared_ptr<Throttle> throttle(const std::string& identity);

  // Reads the file again, and logs that. If it is bad, the old one stays in force. The rates of
  // open sessions change at once; all else holds for sessions that begin. The caller ends those
  // whose identity is gone.
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
