// A program's io thread: runs everything that uses Asio, and nothing that blocks.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace cleave {

class IoThread {
 public:
  IoThread() : guard_(context_.get_executor()), thread_([this] { context_.run(); }) {}
  ~IoThread() { stop(); }
  // Stops immediately; pending work never resumes. Call before destroying anything that runs here.
  void stop() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  boost::asio::io_context& context() { return context_; }

 private:
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_;
  std::thread thread_;
};

// Runs `function` on `executor`'s thread and returns its result; nullopt if that takes more than a
// second, for example because the thread has ended. `function` may still run afterwards. Must be
// called on another thread.
template <typename Function>
std::optional<std::invoke_result_t<Function>> askOn(const boost::asio::any_io_executor& executor,
                                                    Function function) {
  auto promise = std::make_shared<std::promise<std::invoke_result_t<Function>>>();
  auto answer = promise->get_future();
  boost::asio::post(executor,
                    [promise, function = std::move(function)] { promise->set_value(function()); });
  if (answer.wait_for(std::chrono::seconds(1)) != std::future_status::ready) return std::nullopt;
  return answer.get();
}

}  // namespace cleave
