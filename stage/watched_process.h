// A stage's process, as the run that uses it and the thread that watches it (stage_watch.h) see it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "common/core/clock.h"
#include "common/core/open_file.h"

namespace cleave {

// After this time without a request, the process and the server return free memory to the system.
inline constexpr int kStageIdleSeconds = 1;

// How a process ended whose status waitpid() has returned: "signal 11 (Segmentation fault)", "exit
// code 1".
std::string endText(int status);

// Any thread.
class WatchedProcess {
 public:
  // `process`: its number, and `handle` its pidfd. `waitFor` returns its status once it has ended,
  // as waitpid() does.
  // `returnMemory`, if set, is called after kStageIdleSeconds.
  WatchedProcess(pid_t process, OpenFile handle, std::function<int()> waitFor,
                 std::function<void()> returnMemory);

  // Call before each request to it, and after each reply. While it has replied to all of them, it
  // may end its work and return free memory, but not compute: then it is killed.
  void asked();
  void answered();
  bool hasComputedUnasked() const;

  // Does not wait for its end.
  void kill();
  // Kills it if it has not ended, and says how it ended: endText(). Waits for a fifth of a
  // second at most: a process with much memory ends later.
  std::string end();

  // Any thread, at most once. Keeps `held` until the process has ended, and its memory has been
  // freed.
  void keepUntilEnded(std::shared_ptr<const void> held) { held_ = std::move(held); }

  // What the watch does from time to time. Returns false once the process has ended and its status
  // has been read: nothing is left of it.
  bool look();
  bool isEnding() const;  // killed, but not ended
  // The memory that is resident without files and shared memory; 0: unknown, or the process has
  // ended.
  std::size_t residentBytes() const;

 private:
  double processorSeconds() const;
  void killIfComputing();
  void killNow();
  bool read(int milliseconds);

  std::shared_ptr<const void> held_;  // destroyed with this object: see StageProcess::watched()
  mutable std::mutex mutex_;
  const pid_t process_;
  OpenFile handle_;  // closed when it has ended
  const std::function<int()> waitFor_;
  const std::function<void()> returnMemory_;
  std::string ended_;  // how
  bool isKilled_ = false, hasComputedUnasked_ = false;
  std::size_t requests_ = 0;             // without a reply
  double usedSeconds_ = 0;               // of the processor, after the last reply
  std::optional<SteadyTime> idleSince_;  // until memory has been returned
};

}  // namespace cleave
