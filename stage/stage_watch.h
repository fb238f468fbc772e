// A thread that looks at the processes of all stages: kills one that computes although nothing was
// asked of it, returns the memory of an idle one, and reads the status of one that has ended, so
// that nobody else needs to wait for that.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "stage/watched_process.h"

namespace cleave {

class StageWatch {
 public:
  StageWatch() = default;
  // Kills the processes, and waits until they have ended.
  ~StageWatch();
  StageWatch(const StageWatch&) = delete;
  StageWatch& operator=(const StageWatch&) = delete;

  // Shares the process until it has ended and its status has been read. The first call starts the
  // thread. Any thread.
  void add(std::shared_ptr<WatchedProcess> process);
  // Look at the processes soon: one has been killed. Any thread.
  void wake();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool isEnding_ = false, isWoken_ = false;
  std::vector<std::shared_ptr<WatchedProcess>> added_;  // since the last look
  std::thread thread_;
};

}  // namespace cleave
