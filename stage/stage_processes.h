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
#include "stage/stage_watch.h"

namespace cleave {

// A stage's process. Killed by the destructor. One thread at a time.
class StageProcess {
 public:
  // `errors`: the reading end of the pipe that is its standard error.
  StageProcess(StageWatch& watch, std::shared_ptr<WatchedProcess> process, OpenFile socket,
               OpenFile errors);
  ~StageProcess();
  StageProcess(const StageProcess&) = delete;
  StageProcess& operator=(const StageProcess&) = delete;

  int socket() const { return socket_.get(); }
  // Waits until a message can be read, or the process has ended; at most until `deadline`.
  void waitForMessage(std::chrono::steady_clock::time_point deadline) const;
  WatchedProcess& state() { return *process_; }
  // Expires once the process has ended, and its memory has been freed.
  std::weak_ptr<WatchedProcess> watched() const { return process_; }
  // What it has written to its standard error and nobody has read, at most 64 KiB.
  std::string takeErrors();

 private:
  StageWatch& watch_;
  const std::shared_ptr<WatchedProcess> process_;
  const OpenFile socket_, errors_;
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
  // addition; `returnMemory`: see WatchedProcess. If the stage server has ended, and all its
  // processes with it, starts another one, which ends with the calling thread. Throws RunError.
  std::unique_ptr<StageProcess> start(int threads, const SharedMemory& input,
                                      const SharedMemory& output, std::size_t memoryBytes,
                                      std::function<void()> returnMemory);

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
  StageWatch watch_;  // asks the stage server how processes have ended
};

}  // namespace cleave
