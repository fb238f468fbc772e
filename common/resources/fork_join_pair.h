// A helper thread that takes over part of another thread's work if a processor is free.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace cleave {

class ForkJoinPair {
 public:
  ForkJoinPair();
  ~ForkJoinPair();
  ForkJoinPair(const ForkJoinPair&) = delete;
  ForkJoinPair& operator=(const ForkJoinPair&) = delete;

  // Calls both functions once, and returns when both are done. `second` runs on the helper thread
  // if that thread picks it up before the caller has finished `first`; otherwise, or if another
  // caller is using the helper, `second` runs on the caller's thread. So a caller never waits for a
  // helper that has not been scheduled. Rethrows a function's exception; that of `first` takes
  // precedence.
  void run(const std::function<void()>& first, const std::function<void()>& second);

 private:
  void serve();

  std::mutex caller_;  // held by the caller that is using the helper
  std::mutex mutex_;   // guards all members below
  std::condition_variable changed_;
  const std::function<void()>* offered_ = nullptr;
  bool working_ = false;
  bool ending_ = false;
  std::exception_ptr error_;  // thrown by the work last taken over
  std::thread thread_;
};

// Null on a machine with one processor.
std::unique_ptr<ForkJoinPair> makeForkJoinPair();

}  // namespace cleave
