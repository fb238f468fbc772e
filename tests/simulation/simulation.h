// One simulated run: the real client trains with the real server until it is done, while faults
// happen. See world.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulation/world.h"

namespace cleave::sim {

struct Scenario {
  const char* name;
  const char* config;
  bool tls;
};
const std::vector<Scenario>& scenarios();

// A fault at a given place.
struct Fault {
  enum class Kind {
    // `at` is the number of a change of the node's files:
    kill,
    losePower,
    fullDisk,
    badDisk,
    killBoth,
    // `at` is a number of thread switches:
    killAfterSwitches,
    killBothAfterSwitches,
    // `at` is the number of bytes or frames that are delivered before the cut:
    cutAfterBytes,
    cutAfterFrames,
  };
  Kind kind = Kind::kill;
  Node node = kClient;  // kDirector: none
  std::uint64_t at = 0;
  std::string text() const;
};

class Simulation {
 public:
  // `faults`: number of random faults. `certificates`: the folder that contains server/ and
  // client/.
  Simulation(std::filesystem::path folder, const Scenario& scenario,
             std::filesystem::path certificates, std::uint64_t faults, std::optional<Fault> fault,
             std::string logLevel)
      : folder_(std::move(folder)),
        scenario_(scenario),
        certificates_(std::move(certificates)),
        faults_(faults),
        fault_(std::move(fault)),
        logLevel_(std::move(logLevel)) {}

  // Call this after begin(). Returns whether the run was completed.
  bool run();
  // The faults that happened, such as ", 2 x link cut".
  std::string summary() const;

 private:
  std::filesystem::path runFolder() const { return folder_ / "client" / "run"; }
  std::filesystem::path store() const { return folder_ / "server" / "store"; }
  bool isDone() const;
  void startServer();
  void startClient();
  void clientFailed();
  void armRandom();
  void arm(const Fault& fault);
  void loseFiles();
  void damageCheckpoint();
  void backUp();
  void restore(Node node);
  bool hasNewestCommit() const;
  void count(const std::string& name);

  const std::filesystem::path folder_;
  const Scenario& scenario_;
  const std::filesystem::path certificates_;
  const std::uint64_t faults_;
  const std::optional<Fault> fault_;
  const std::string logLevel_;
  std::optional<int> exitCode_;  // exit code of the client; empty while it runs
  std::string errorCode_;
  bool peerIsWrong_ = false;  // the client has found a violation of the protocol
  bool serverEnded_ = false;
  bool filesAreLost_ = false;  // files were lost on either side, so the run may have to start over
  bool disksWork_ = true;      // no file was lost or damaged, and no change of a file has failed
  bool fromStart_ = false, takeOver_ = false;  // options of the next client
  std::map<std::string, int> counts_;
};

// The contents of a file; empty if the file does not exist.
std::string readAll(const std::filesystem::path& path);
// The results that must not depend on faults: the digest of the model, and the losses and metrics
// per epoch. Empty if there is no model.
std::string resultOf(const std::filesystem::path& folder);

}  // namespace cleave::sim
