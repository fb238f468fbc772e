// The io thread of a daemon: everything of Asio runs here, and nothing that blocks.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>

namespace cleave {

class IoThread {
 public:
  IoThread() : guard_(context_.get_executor()), thread_([this] { context_.run(); }) {}
  ~IoThread() { stop(); }
  // Stops at once: what still waits never goes on. To be called before anything that runs here is
  // destroyed.
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

}  // namespace cleave
