// Runs the real programs in tests: a temporary folder, a server on a free port, and clients with a
// small configuration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/run/temporary_folder.h"
#include "tests/daemon/process.h"

namespace cleave::test {

using Arguments = std::vector<std::string>;
// Returns `arguments` followed by `more`.
Arguments with(Arguments arguments, const Arguments& more);

inline constexpr std::chrono::seconds kPatience{120};  // for operations that usually take a second

// A temporary folder, which the destructor removes.
class TemporaryFolder {
 public:
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

 private:
  cleave::TemporaryFolder folder_;
};

// A cleave-server that stores its runs in `folder`/store. `within`: a command prefix that runs the
// server.
class TestServer {
 public:
  TestServer(const TemporaryFolder& folder, const Arguments& more = {},
             const std::string& store = "store", const Arguments& within = {});
  std::uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Process& process() { return process_; }
  // Ends the server with SIGTERM, so that all its records are written. Fails the test unless it
  // exits with 0.
  void stop();
  std::string runFolder(const std::string& runId) const { return store_ + "/local/" + runId; }
  // The folders of all runs.
  std::vector<std::string> runFolders() const;

 private:
  std::string store_;
  Process process_;
  std::uint16_t port_ = 0;
};

std::string addressAt(std::uint16_t port);  // on loopback
// A command prefix that runs a program with an armed failpoint.
Arguments failingAt(const std::string& place);

// A server that can be started again on the same port and with the same store.
class RestartableServer {
 public:
  explicit RestartableServer(const TemporaryFolder& folder, const Arguments& more = {},
                             const std::string& store = "store");
  void start(const Arguments& within = {});
  void kill();
  TestServer& server() { return *server_; }
  std::string address() const { return addressAt(port_); }

 private:
  const TemporaryFolder& folder_;
  const Arguments more_;
  const std::string store_;
  std::unique_ptr<TestServer> server_;
  std::uint16_t port_ = 0;
};

// Trains with a server that is killed at these failpoints, one after the other, and started again
// each time. Fails the test unless the run completes.
void trainThroughKills(RestartableServer& server, const std::vector<std::string>& places,
                       const std::string& run, const Arguments& arguments);
// While `client` trains in the folder `run`, ends the server with SIGTERM and starts it again.
// Fails the test unless the run completes after one resume, without redoing a step.
void restartWithoutLoss(RestartableServer& server, const Process& client, const std::string& run);

std::string serverProgram();
std::string clientProgram();
std::string configFile(const std::string& name);  // a file in configs/

// Options of a client that should end when its server ends.
inline const Arguments kNoCheckpoints = {"--set", "checkpoint.every_seconds=0"};

// Starts `command` of cleave-client with a reduced configs/synthetic.yaml and block:bits=8.
Process startClient(const std::string& command, const std::string& runFolder, const Arguments& more,
                    const Arguments& within = {});

struct Ended {
  int code = -1;
  std::string output;
  std::string errors;
};
// Waits until the process exits. Fails the test on a timeout.
Ended finish(const Process& process);
// Fails the test unless all of these processes exit with 0; by name.
void checkDone(const std::map<std::string, Process>& clients);
// Waits until the process has written this to stderr. Fails the test on a timeout.
void waitForText(const Process& process, const std::string& text);
// Continues a run with `train --resume`.
Process startResume(const std::string& run, const Arguments& more = {},
                    const Arguments& within = {});
Ended resume(const std::string& run, const Arguments& more = {});
Ended runClient(const std::string& command, const std::string& runFolder, const Arguments& more);
// Runs cleave-client with these arguments.
Ended ask(Arguments arguments);
// Runs cleave-client with these arguments and --json. Fails the test unless it exits with 0.
nlohmann::json askJson(Arguments arguments);
// Runs `verify --json` for two steps. Fails the test if it fails; returns its output.
nlohmann::json verifySteps(const std::string& run, const Arguments& more);
// Fails the test unless the two runs have the same weights.
void checkSameModel(const std::string& expected, const std::string& run);
// Different ports that are free now.
std::vector<std::uint16_t> freePorts(std::size_t count);
// Starts a training run that lasts long enough for the test to interfere, because its micro-batches
// wait.
Process startSlowClient(const std::string& runFolder, const std::string& server,
                        const Arguments& more = {}, const Arguments& within = {});
// Waits until the client's file has some steps.
void waitForSteps(const std::string& runFolder);
// Fails the test unless the records in the folder of a finished run are complete.
void checkFilesComplete(const std::string& runFolder);

// The resources that a process uses.
struct Resources {
  std::int64_t residentKiB = 0;
  std::size_t descriptors = 0;
  std::size_t threads = 0;
};
// All values are 0 if the process has exited.
Resources resourcesOf(const Process& process);

// The rows of a CSV file, as maps from column to text. Fails the test if a row and the header have
// different numbers of cells.
using CsvRow = std::map<std::string, std::string>;
std::vector<CsvRow> readCsv(const std::string& path);
std::vector<std::string> csvHeader(const std::string& path);
std::string readFile(const std::string& path);
nlohmann::json summaryOf(const std::string& run);  // the file summary.json in a run's folder
// The tensors of a safetensors file with their names, types and shapes, but without the metadata.
// The result is equal for runs with bit-identical results, even if their configurations differ.
std::string readTensors(const std::string& path);
// The sum of the column `summed` over the rows that match `where`.
double sumOf(const std::vector<CsvRow>& rows, const std::string& summed, const CsvRow& where = {});

}  // namespace cleave::test
