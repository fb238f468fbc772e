#include "stage/stage_watch.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace cleave {
namespace {

constexpr std::chrono::milliseconds kLook{500}, kLookAtEnding{10};

}  // namespace

StageWatch::~StageWatch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    isEnding_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void StageWatch::add(std::shared_ptr<WatchedProcess> process) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  added_.push_back(std::move(process));
  isWoken_ = true;
  changed_.notify_all();
}

void StageWatch::wake() {
  const std::lock_guard lock(mutex_);
  isWoken_ = true;
  changed_.notify_all();
}

void StageWatch::run() {
  std::vector<std::shared_ptr<WatchedProcess>> processes;
  std::unique_lock lock(mutex_);
  while (!isEnding_) {
    processes.insert(processes.end(), std::make_move_iterator(added_.begin()),
                     std::make_move_iterator(added_.end()));
    added_.clear();
    isWoken_ = false;
    lock.unlock();
    std::erase_if(processes, [](const auto& process) { return !process->look(); });
    const bool isOneEnding =
        std::ranges::any_of(processes, [](const auto& process) { return process->isEnding(); });
    lock.lock();
    const auto hasNews = [this] { return isEnding_ || isWoken_; };
    if (processes.empty()) {
      changed_.wait(lock, hasNews);
    } else {
      changed_.wait_for(lock, isOneEnding ? kLookAtEnding : kLook, hasNews);
    }
  }
  for (const auto& process : processes) process->end();
  for (const auto& process : added_) process->end();
}

}  // namespace cleave
