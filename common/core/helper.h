// A thread that takes over a part of another thread's work where a processor is free for it.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace cleave {

class Helper {
 public:
  Helper();
  ~Helper();
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  // Calls both functions once, and returns when both are done. `second` runs on the helper's thread
  // if that gets to it before the caller is through with `first`; else, and where another caller
  // has the helper, on the caller's. So nobody waits for a helper that finds no processor. Throws
  // what a function threw, the first of the two.
  void run(const std::function<void()>& first, const std::function<void()>& second);

 private:
  void serve();

  std::mutex caller_;  // held by the caller that has the helper
  std::mutex mutex_;   // guards what follows
  std::condition_variable changed_;
  const std::function<void()>* offered_ = nullptr;
  bool working_ = false;
  bool ending_ = false;
  std::exception_ptr error_;  // of the work last taken over
  std::thread thread_;
};

// Null on a machine with one processor.
std::unique_ptr<Helper> makeHelper();

}  // namespace cleave
