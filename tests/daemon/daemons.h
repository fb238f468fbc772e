// Real daemons for tests: a temporary folder, a server on a free port, and clients with a small
// configuration.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/daemon/process.h"

namespace cleave::test {

using Arguments = std::vector<std::string>;
// `arguments`, then `more`.
Arguments with(Arguments arguments, const Arguments& more);

inline constexpr std::chrono::seconds kPatience{120};  // for operations that usually take a second

// A temporary folder, which the destructor removes.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

// A cleave-server that stores its runs in `folder`/store. `within`: a program with arguments that
// runs it.
class TestServer {
 public:
  TestServer(const TemporaryFolder& folder, const Arguments& more = {},
             const std::string& store = "store", const Arguments& within = {});
  std::uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Process& process() { return process_; }
  // Ends it with SIGTERM, so that all its records are written. Fails the test unless it exits with
  // 0.
  void stop();
  std::string runFolder(const std::string& runId) const { return store_ + "/local/" + runId; }
  // The folders of all runs.
  std::vector<std::string> runFolders() const;

 private:
  std::string store_;
  Process process_;
  std::uint16_t port_ = 0;
};

std::string serverProgram();
std::string clientProgram();
std::string configFile(const std::string& name);  // a file in configs/

// For a client that should end when its server does.
inline const Arguments kNoCheckpoints = {"--set", "checkpoint.every_seconds=0"};

// Starts `command` of cleave-client with a reduced configs/synthetic.yaml and block:bits=8.
Process startClient(const std::string& command, const std::string& runFolder, const Arguments& more,
                    const Arguments& within = {});

struct Ended {
  int code = -1;
  std::string output;
  std::string errors;
};
// Waits until it exits. Fails the test on a timeout.
Ended finish(const Process& process);
Ended runClient(const std::string& command, const std::string& runFolder, const Arguments& more);
// Runs cleave-client with these arguments.
Ended ask(Arguments arguments);
// The same with --json. Fails the test unless it exits with 0.
nlohmann::json askJson(Arguments arguments);
// Starts a `train` whose micro-batches wait, which lasts long enough to interfere with it.
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
// All 0 if it has exited.
Resources resourcesOf(const Process& process);

// A CSV file: rows as maps from column to text. Fails the test if a row has a different number of
// cells than the header.
using CsvRow = std::map<std::string, std::string>;
std::vector<CsvRow> readCsv(const std::string& path);
std::vector<std::string> csvHeader(const std::string& path);
std::string readFile(const std::string& path);
// The tensors of a safetensors file with their names, types and shapes, without its metadata: equal
// for runs whose results are bit-identical, even if their configurations differ.
std::string readTensors(const std::string& path);
// Sum of the column `summed`, over the rows that match `where`.
double sumOf(const std::vector<CsvRow>& rows, const std::string& summed, const CsvRow& where = {});

}  // namespace cleave::test
