// One simulated run: the real client, or the members of a cohort, train with the real server until
// they are done, while faults happen. See world.h.
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
  bool tls = false;
  int clients = 1;  // more than one: the members of a cohort
  // The cohort goes on without a member that is away. The result then depends on who took part.
  bool goesOn = false;
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
    killAll,
    // `at` is a number of thread switches:
    killAfterSwitches,
    killAllAfterSwitches,
    // `at` is the number of bytes or frames that are delivered before the cut:
    cutAfterBytes,
    cutAfterFrames,
  };
  Kind kind = Kind::kill;
  Node node = kClient;  // kDirector: none
  std::uint64_t at = 0;
  std::string text() const;
};

// The run folder of this client, in a simulation's folder.
std::filesystem::path runFolderOf(const std::filesystem::path& folder, Node client);

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

  // Call this after begin(). Returns whether the run was completed, by at least one client.
  bool run();
  // The faults that happened, such as ", 2 x link cut".
  std::string summary() const;

 private:
  struct Client {
    Node node = kClient;
    std::optional<int> exitCode = {};  // empty while it runs
    std::string errorCode = {};
    bool fromStart = false, takeOver = false;  // options of its next start
    std::optional<Nanoseconds> startAt = {};   // when it starts again, if it is away
  };
  std::filesystem::path runFolder(Node client) const { return runFolderOf(folder_, client); }
  std::filesystem::path store() const { return folder_ / "server" / "store"; }
  // Its folder has the results.
  bool isComplete(const Client& client) const;
  // The run is done, or the client's cohort is done without it.
  bool isDone(const Client& client) const;
  bool isRunning(const Client& client) const;
  // It does not run, although it is not done.
  bool isAway(const Client& client) const;
  bool isAnyoneAway() const;
  bool isOver();
  // A program is away that must start now, or whose next start has not been decided.
  bool mustStart() const;
  bool isServerAway() const { return !isAlive(kServer) || serverEnded_; }
  void startServer();
  void startClient(Client& client);
  void clientFailed(Client& client);
  Node drawNode() const;
  Node drawClient() const;
  void armRandom();
  void arm(const Fault& fault);
  void loseFiles();
  void damageCheckpoint(Node node);
  void backUp();
  void restore(Node node);
  bool haveNewestCommit() const;
  void count(const std::string& name);

  const std::filesystem::path folder_;
  const Scenario& scenario_;
  const std::filesystem::path certificates_;
  const std::uint64_t faults_;
  const std::optional<Fault> fault_;
  const std::string logLevel_;
  std::vector<Client> clients_;
  // A client has found a violation of the protocol, or waits for a server that does not compute.
  bool peerIsWrong_ = false;
  bool serverEnded_ = false;
  int serverStarts_ = 0;
  bool filesAreLost_ = false;  // files were lost on either side, so the run may have to start over
  bool disksWork_ = true;      // no file was lost or damaged, and no change of a file has failed
  std::optional<Nanoseconds> resultSince_;  // when the first client was complete
  std::map<std::string, int> counts_;
};

// The contents of a file; empty if the file does not exist.
std::string readAll(const std::filesystem::path& path);
// The results that must not depend on faults: the digest of the model, and the losses and metrics
// per epoch. Empty if the run is not done.
std::string resultOf(const std::filesystem::path& runFolder);

}  // namespace cleave::sim
