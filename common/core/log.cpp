#include "common/core/log.h"
#include "common/core/names.h"

#include <spdlog/async_logger.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/dist_sink.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "common/core/error.h"
#include "common/core/printable.h"
#include "common/core/terminal.h"

namespace cleave {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kQueuedLines = 8192;
constexpr char kTimeAndLevel[] = "%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ ";

std::unique_ptr<spdlog::formatter> utcFormatter(const std::string& pattern) {
  return std::make_unique<spdlog::pattern_formatter>(pattern, spdlog::pattern_time_type::utc);
}

std::string jsonText(std::string_view text) {
  return escaped(
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// Whatever texts of peers and files a message has, it stays one line that controls no terminal.
class OneLineFormatter final : public spdlog::formatter {
 public:
  explicit OneLineFormatter(std::string pattern)
      : pattern_(std::move(pattern)), formatter_(pattern_, spdlog::pattern_time_type::utc) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    std::string text = escaped({message.payload.data(), message.payload.size()});
    std::replace(text.begin(), text.end(), '\n', ' ');
    spdlog::details::log_msg line = message;
    line.payload = text;
    formatter_.format(line, out);
    message.color_range_start = line.color_range_start;
    message.color_range_end = line.color_range_end;
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<OneLineFormatter>(pattern_);
  }

 private:
  const std::string pattern_;
  spdlog::pattern_formatter formatter_;
};

// The name of a message's logger has the fields of logAbout(): "identity":"a","run":"b",
class JsonFormatter final : public spdlog::formatter {
 public:
  explicit JsonFormatter(std::string program)
      : program_(std::move(program)), time_(utcFormatter("%Y-%m-%dT%H:%M:%S.%eZ")) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    spdlog::memory_buf_t time;
    time_->format(message, time);
    const std::string line =
        fmt::format(R"({{"time":"{}","level":"{}","logger":{},{}"message":{}}})"
                    "\n",
                    trimmed({time.data(), time.size()}),
                    std::string_view(spdlog::level::to_string_view(message.level).data(),
                                     spdlog::level::to_string_view(message.level).size()),
                    jsonText(program_),
                    std::string_view(message.logger_name.data(), message.logger_name.size()),
                    jsonText({message.payload.data(), message.payload.size()}));
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(program_);
  }

 private:
  // Without the line break that spdlog appends.
  static std::string_view trimmed(std::string_view text) {
    return text.substr(0, text.find_last_not_of("\r\n") + 1);
  }

  const std::string program_;
  const std::unique_ptr<spdlog::formatter> time_;
};

constexpr std::array<std::string_view, spdlog::level::n_levels> kColors = {
    "\x1b[37m", "\x1b[36m", "\x1b[32m", "\x1b[1;33m", "\x1b[1;31m", "\x1b[1;41m", ""};
constexpr std::string_view kNoColor = "\x1b[0m";

// Each line to stderr is a single write, above the status line.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t text;
    formatter_->format(message, text);
    std::string line(text.data(), text.size());
    const bool isMarked = message.color_range_end > message.color_range_start;
    if (color_ && isMarked) {
      line.insert(message.color_range_end, kNoColor);
      line.insert(message.color_range_start, kColors[message.level]);
    }
    status_.writeAbove(STDERR_FILENO, line);
  }
  void flush_() override {}  // nothing is buffered

  StatusLine& status_ = StatusLine::instance();
  const bool color_ = wantsColor(STDERR_FILENO);
};

// Spdlog's thread, and the logger to stderr. Logging never blocks: if lines arrive faster than they
// can be written, the oldest are dropped.
struct Log {
  Log()
      : pool(std::make_shared<spdlog::details::thread_pool>(kQueuedLines, 1)),
        process(logger(terminal, files)) {
    process->set_formatter(std::make_unique<OneLineFormatter>(std::string(kTimeAndLevel) + "%v"));
  }

  template <typename... Sinks>
  std::shared_ptr<spdlog::async_logger> logger(Sinks... sinks) const {
    const std::vector<spdlog::sink_ptr> all = {sinks...};
    auto made = std::make_shared<spdlog::async_logger>(
        "", all.begin(), all.end(), pool, spdlog::async_overflow_policy::overrun_oldest);
    made->flush_on(spdlog::level::trace);  // each line, so that a crash loses none
    return made;
  }

  const std::shared_ptr<spdlog::details::thread_pool> pool;
  const std::shared_ptr<StderrSink> terminal = std::make_shared<StderrSink>();
  const std::shared_ptr<spdlog::sinks::dist_sink_mt> files =
      std::make_shared<spdlog::sinks::dist_sink_mt>();
  const std::shared_ptr<spdlog::async_logger> process;  // to both
};

Log& instance() {
  static Log log;
  return log;
}

// Forwards a run's lines to stderr, if the process's log has their level. Runs only on spdlog's one
// thread, so it needs no lock.
class PrefixSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit PrefixSink(std::string prefix) : prefix_(std::move(prefix)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!process_->should_log(message.level)) return;
    const std::string line = prefix_ + std::string(message.payload.data(), message.payload.size());
    spdlog::details::log_msg prefixed = message;
    prefixed.payload = line;
    terminal_->log(prefixed);
  }
  void flush_() override {}  // stderr is not buffered

  const std::shared_ptr<spdlog::logger> process_ = instance().process;
  const std::shared_ptr<StderrSink> terminal_ = instance().terminal;
  const std::string prefix_;
};

// Only one queued line refers to this sink. It is destroyed when the queue has been processed up to
// that line, or when newer lines have pushed that line out of the queue.
class BarrierSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit BarrierSink(std::promise<void> passed) : passed_(std::move(passed)) {}
  ~BarrierSink() override { passed_.set_value(); }

 private:
  void sink_it_(const spdlog::details::log_msg&) override {}
  void flush_() override {}

  std::promise<void> passed_;
};

}  // namespace

void startLog(const std::string& program, const std::string& level) {
  const std::vector<std::string> levels = {"trace", "debug", "info", "warn", "error"};
  if (std::find(levels.begin(), levels.end(), level) == levels.end()) {
    const std::string meant = nearestName(level, levels);
    throw UsageError("bad-log-level",
                     "'" + level + "' is not a log level" +
                         (meant.empty() ? "" : "; did you mean " + meant + "?"),
                     "use one of trace, debug, info, warn and error");
  }
  std::string name;  // escaped: a % in a pattern starts a field
  for (const char c : program) name.append(c == '%' ? 2 : 1, c);
  instance().process->set_formatter(
      std::make_unique<OneLineFormatter>(kTimeAndLevel + name + ": %v"));
  instance().process->set_level(spdlog::level::from_str(level));
}

void logAsJson(const std::string& program) {
  instance().terminal->set_formatter(std::make_unique<JsonFormatter>(program));
}

std::shared_ptr<spdlog::logger> logAbout(const std::string& identity, const std::string& run) {
  std::string fields;
  if (!identity.empty()) fields += "\"identity\":" + jsonText(identity) + ",";
  if (!run.empty()) fields += "\"run\":" + jsonText(run) + ",";
  return processLog()->clone(fields);
}

std::shared_ptr<spdlog::logger> processLog() { return instance().process; }

namespace {

template <typename... Sinks>
std::shared_ptr<spdlog::logger> loggerToFile(const std::string& path, Sinks... others) {
  std::shared_ptr<spdlog::sinks::basic_file_sink_mt> file;
  try {
    file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  } catch (const spdlog::spdlog_ex& error) {
    throw RunError("cannot-write", path + ": the log cannot be opened: " + error.what(),
                   "check that the folder exists and is writable");
  }
  file->set_formatter(std::make_unique<OneLineFormatter>(std::string(kTimeAndLevel) + "%v"));
  const Log& log = instance();
  const auto logger = log.logger(file, others...);
  // A run's file gets info lines even if stderr is quieter.
  logger->set_level(std::min(log.process->level(), spdlog::level::info));
  return logger;
}

}  // namespace

std::shared_ptr<spdlog::logger> runLog(const std::string& path, const std::string& prefix) {
  return loggerToFile(path, std::make_shared<PrefixSink>(prefix));
}

void addToProcessLog(const std::shared_ptr<spdlog::logger>& run) {
  instance().files->add_sink(run->sinks().front());
}

std::shared_ptr<spdlog::logger> fileLog(const std::string& path) { return loggerToFile(path); }

void flushLog() {
  const Log& log = instance();
  while (true) {
    std::promise<void> promise;
    const std::future<void> passed = promise.get_future();
    log.logger(std::make_shared<BarrierSink>(std::move(promise)))->info("");
    // A dropped line stays in its slot until the next line overwrites it, so log another line in
    // case no other thread does.
    if (passed.wait_for(1s) == std::future_status::ready) return;
  }
}

}  // namespace cleave
