// The server's side: starts cleave-stage, and has it fork a process for each stage.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/core/open_file.h"
#include "stage/orders.h"
#include "stage/shared_memory.h"

namespace cleave {

// A stage's process. Killed by the destructor. One thread at a time.
class StageProcess {
 public:
  // `process`: its number, and `handle` its pidfd. `errors`: the reading end of the pipe that is
  // its standard error. `waitFor` returns its status once it has ended, as waitpid() does.
  StageProcess(pid_t process, OpenFile handle, std::function<int()> waitFor, OpenFile socket,
               OpenFile errors);
  ~StageProcess();
  StageProcess(const StageProcess&) = delete;
  StageProcess& operator=(const StageProcess&) = delete;

  int socket() const { return socket_.get(); }
  // Waits until a message can be read, or the process has ended; at most until `deadline`.
  void waitForMessage(std::chrono::steady_clock::time_point deadline) const;
  // The processor time that it has used, in seconds; 0 once it has ended.
  double processorSeconds() const;
  // Kills the process if it has not ended, and says how it ended: "signal 11 (Segmentation fault)".
  std::string end();
  // What it has written to its standard error and nobody has read, at most 64 KiB.
  std::string takeErrors();

 private:
  const pid_t process_;
  OpenFile handle_;  // closed when it has ended
  const std::function<int()> waitFor_;
  const OpenFile socket_, errors_;
  std::string ended_;  // how
};

// Must outlive the processes. Any thread.
class StageProcesses {
 public:
  // Starts cleave-stage, which lies beside this program. Call on the thread that will start
  // processes, before this process has other threads and secrets. If it cannot be started,
  // missing() and start() throw RunError "no-stage-server".
  StageProcesses();
  ~StageProcesses();
  StageProcesses(const StageProcesses&) = delete;
  StageProcesses& operator=(const StageProcesses&) = delete;

  // Empty if the kernel confines the processes; else what it refuses. Waits until cleave-stage is
  // ready.
  const std::string& missing();
  // `input` and `output`: memory to and from the process; `memoryBytes`: what it may allocate in
  // addition. If the stage server has ended, and all its processes with it, starts another one,
  // which ends with the calling thread. Throws RunError.
  std::unique_ptr<StageProcess> start(int threads, const SharedMemory& input,
                                      const SharedMemory& output, std::size_t memoryBytes);

 private:
  void startServer();
  void endServer();
  // Returns false if the stage server has ended.
  bool exchange(const StageOrder& order, std::span<const int> sent, StageOrderReply& reply,
                std::vector<OpenFile>& received);
  int statusOf(pid_t process, std::uint64_t generation);

  std::mutex mutex_;  // one order at a time
  OpenFile socket_;
  pid_t server_ = 0;
  std::uint64_t generation_ = 0;  // stage servers that have been started
  OpenFile trialErrors_;          // until the result of the trial has been received
  std::string startError_, missing_;
};

}  // namespace cleave
