// Real daemons for tests: a folder of their own, a server on a free port, clients with a small
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

inline constexpr std::chrono::seconds kPatience{120};  // for what takes a second on an idle machine

// A temporary folder, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

// A cleave-server that keeps its runs in `folder`/store. `within`: a program, with arguments, that
// runs it.
class TestServer {
 public:
  TestServer(const TemporaryFolder& folder, const Arguments& more = {},
             const std::string& store = "store", const Arguments& within = {});
  std::uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  Process& process() { return process_; }
  // Ends it with SIGTERM, so that all its records are written. Fails the test unless it ends with
  // 0.
  void stop();
  std::string runFolder(const std::string& runId) const { return store_ + "/local/" + runId; }
  // Every run's folder.
  std::vector<std::string> runFolders() const;

 private:
  std::string store_;
  Process process_;
  std::uint16_t port_ = 0;
};

std::string serverProgram();
std::string clientProgram();
std::string configFile(const std::string& name);  // of configs/

// `command` of cleave-client with configs/synthetic.yaml made small, and block:bits=8.
Process startClient(const std::string& command, const std::string& runFolder, const Arguments& more,
                    const Arguments& within = {});

struct Ended {
  int code = -1;
  std::string output;
  std::string errors;
};
// Waits for the end of it. Fails the test where it does not come.
Ended finish(const Process& process);
Ended runClient(const std::string& command, const std::string& runFolder, const Arguments& more);
// cleave-client with these arguments.
Ended ask(Arguments arguments);
// The same with --json. Fails the test unless it ends with 0.
nlohmann::json askJson(Arguments arguments);
// `train` for so long that it can be met in the middle: each micro-batch waits.
Process startSlowClient(const std::string& runFolder, const std::string& server,
                        const Arguments& more = {}, const Arguments& within = {});
// Waits until some steps are in the client's file.
void waitForSteps(const std::string& runFolder);
// Fails the test unless the records in the folder of a run that has ended are whole.
void checkFilesComplete(const std::string& runFolder);

// What a process holds.
struct Resources {
  std::int64_t residentKiB = 0;
  std::size_t descriptors = 0;
  std::size_t threads = 0;
};
// All 0 where it has ended.
Resources resourcesOf(const Process& process);

// A CSV file: rows as maps from column to text. Fails the test where a row has another number of
// cells than the header.
using CsvRow = std::map<std::string, std::string>;
std::vector<CsvRow> readCsv(const std::string& path);
std::vector<std::string> csvHeader(const std::string& path);
std::string readFile(const std::string& path);
// Sum of a column; of the rows where `column` has `value`, if given.
double sumOf(const std::vector<CsvRow>& rows, const std::string& summed, const CsvRow& where = {});

}  // namespace cleave::test
