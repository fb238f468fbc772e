#include "server/store/usage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/core/durable.h"
#include "common/core/error.h"
#include "common/core/log.h"
#include "common/core/open_file.h"
#include "common/files/record.h"

namespace cleave {
namespace {

constexpr std::size_t kMaxLine = 4096;

// `number` 0: the file to which lines are appended.
std::string fileOf(const std::string& folder, int number) {
  return folder + (number == 0 ? "/usage.jsonl" : "/usage." + std::to_string(number) + ".jsonl");
}

std::string textOf(const UsageLine& line) {
  const nlohmann::ordered_json json{{"time", line.time},
                                    {"identity", line.identity},
                                    {"run", line.run},
                                    {"sessions", line.usage.sessions},
                                    {"steps", line.usage.steps},
                                    {"device_seconds", line.usage.deviceSeconds},
                                    {"bytes_up", line.usage.bytesUp},
                                    {"bytes_down", line.usage.bytesDown}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::optional<UsageLine> parseLine(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    UsageLine line;
    line.time = json.at("time");
    line.identity = json.at("identity");
    line.run = json.at("run");
    line.usage = {json.at("sessions"), json.at("steps"), json.at("device_seconds"),
                  json.at("bytes_up"), json.at("bytes_down")};
    return line;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

Usage& Usage::operator+=(const Usage& other) {
  sessions += other.sessions;
  steps += other.steps;
  deviceSeconds += other.deviceSeconds;
  bytesUp += other.bytesUp;
  bytesDown += other.bytesDown;
  return *this;
}

// ---- A run ----

void UsageMeter::connected() {
  const std::lock_guard lock(mutex_);
  ++usage_.sessions;
}

void UsageMeter::finishedBatch(Phase phase, const ActionSeconds& actions) {
  using enum ActionKind;
  const std::lock_guard lock(mutex_);
  if (phase == Phase::train) ++usage_.steps;
  for (const ActionKind kind : {bodyForward, bodyBackward, bodyWeights, report, update}) {
    usage_.deviceSeconds += actions[indexOf(kind)];
  }
}

Usage UsageMeter::take(const LinkTotals& totals) {
  const std::lock_guard lock(mutex_);
  Usage taken = std::exchange(usage_, {});
  taken.bytesUp = totals.up() - std::exchange(up_, totals.up());
  taken.bytesDown = totals.down() - std::exchange(down_, totals.down());
  return taken;
}

// ---- The file ----

int UsageFile::append(const UsageLine& line) {
  const bool hasRoom =
      pending_.size() < kMaxPendingRuns || pending_.contains({line.identity, line.run});
  UsageLine& pending = pending_[{line.identity, hasRoom ? line.run : ""}];
  const Usage before = pending.usage;
  pending = line;
  pending.usage += before;
  if (!hasRoom) pending.run.clear();
  const int error = write();
  if (error == 0) pending_.clear();
  return error;
}

int UsageFile::write() {
  std::string text;
  for (const auto& [key, line] : pending_) text += textOf(line);
  std::error_code failed;
  std::filesystem::create_directories(folder_, failed);
  if (failed) return failed.value();
  const std::string path = fileOf(folder_, 0);
  OpenFile file(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file) return errno;
  off_t size = ::lseek(file.get(), 0, SEEK_END);
  if (size > 0 && static_cast<std::size_t>(size) + text.size() > kUsageFileBytes) {
    file.close();
    if (const int error = rotate()) return error;
    file = OpenFile(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
    if (!file) return errno;
    size = 0;
  }
  char last = '\n';
  if (size > 0 && ::pread(file.get(), &last, 1, size - 1) != 1) return errno;
  int error = writeAll(file.get(), (last == '\n' ? "" : "\n") + text);
  if (error == 0 && ::fdatasync(file.get()) != 0) error = errno;
  // Otherwise the next attempt would count lines twice.
  if (error != 0 && ::ftruncate(file.get(), size) != 0) pending_.clear();
  return error;
}

int UsageFile::rotate() const {
  for (int number = kUsageFiles - 2; number >= 0; --number) {
    const std::string from = fileOf(folder_, number), to = fileOf(folder_, number + 1);
    if (::rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT) return errno;
  }
  return 0;
}

std::size_t readUsage(const std::string& folder, const std::function<void(UsageLine)>& take) {
  std::size_t damaged = 0;
  for (int number = kUsageFiles - 1; number >= 0; --number) {
    const std::string path = fileOf(folder, number);
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file && errno == ENOENT) continue;
    for (std::string text; std::getline(file, text);) {
      auto line = text.size() > kMaxLine ? std::nullopt : parseLine(text);
      if (line) {
        take(*std::move(line));
      } else if (!text.empty()) {
        ++damaged;
      }
    }
    if (file.eof() && !file.bad()) continue;
    throw UsageError("cannot-read", path + ": cannot be read: " + std::strerror(errno),
                     "run this command as the user that runs the server");
  }
  return damaged;
}

// ---- The server ----

UsageBook::UsageBook(const std::string& folder, boost::asio::any_io_executor thread)
    : writer_(folder.empty() ? nullptr : std::make_shared<Writer>(Writer{UsageFile(folder)})),
      thread_(std::move(thread)) {}

void UsageBook::add(const std::string& identity, const std::string& run, const Usage& usage,
                    SteadyTime time) {
  if (usage == Usage()) return;
  totals_[identity] += usage;
  open_.try_emplace({identity, run}, Open{time, {}}).first->second.usage += usage;
}

void UsageBook::close(const std::string& identity, const std::string& run) {
  const auto found = open_.find({identity, run});
  if (found == open_.end()) return;
  write(found->first, found->second.usage);
  open_.erase(found);
}

void UsageBook::look(SteadyTime time) {
  std::erase_if(open_, [&](const auto& each) {
    const bool isDue = time - each.second.since >= kEvery;
    if (isDue) write(each.first, each.second.usage);
    return isDue;
  });
}

void UsageBook::write(const Key& key, const Usage& usage) {
  if (!writer_) return;
  boost::asio::post(
      thread_, [writer = writer_, line = UsageLine{utcNow(), key.first, key.second, usage}] {
        const int error = writer->file.append(line);
        if (error != 0 && !writer->hasFailed) {
          processLog()->warn("the account of usage cannot be written, and is kept in memory: {}",
                             std::strerror(error));
        }
        writer->hasFailed = error != 0;
      });
}

}  // namespace cleave
