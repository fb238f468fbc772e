#include "client/report/live_report.h"

#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "client/report/report.h"
#include "client/report/report_data.h"
#include "common/core/clock.h"

namespace cleave {
namespace {

constexpr double kMinBetweenReads = 0.5;  // seconds; limits the cost of several open pages
// Seconds. A page counts as open if its last request is more recent.
constexpr double kOpenPage = 3;
constexpr std::chrono::milliseconds kFinish{2500};
constexpr int kNiceness = 10;

// Returns 12 for the query "after=12", and 0 for any other text; 0 is never a version.
std::uint64_t versionIn(const std::string& query) {
  constexpr std::string_view kKey = "after=";
  std::uint64_t version = 0;
  if (query.starts_with(kKey)) {
    std::from_chars(query.data() + kKey.size(), query.data() + query.size(), version);
  }
  return version;
}

}  // namespace

// page() and data() run on the server's thread.
class LiveReport::Pages {
 public:
  void show(const std::vector<RunPlace>& runs) {
    const std::lock_guard lock(mutex_);
    report_ = std::make_unique<ReportData>(runs);
  }

  HttpAnswer page() const { return {200, "text/html; charset=utf-8", page_}; }

  // Answers with status 204 if the page is up to date.
  HttpAnswer data(const HttpRequest& request) {
    beNice();
    if (!hasRuns()) return {204, "application/json", ""};
    update();
    noteLook();
    if (versionIn(request.query) == version_) return {204, "application/json", ""};
    return {200, "application/json", data_};
  }

  void waitForLook() {
    std::unique_lock lock(mutex_);
    if (!lastLook_ || secondsSince(*lastLook_) > kOpenPage) return;
    // Waits for two responses, because the first one may have been generated before the last rows
    // were written.
    const std::uint64_t enough = looks_ + 2;
    looked_.wait_for(lock, kFinish, [&] { return looks_ >= enough; });
  }

 private:
  void beNice() {
    if (nice_) return;
    nice_ = true;
    // Affects only this thread: on Linux each thread has its own priority.
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNiceness);
  }

  bool hasRuns() {
    const std::lock_guard lock(mutex_);
    return report_ != nullptr;
  }

  void update() {
    if (read_ && secondsSince(*read_) < kMinBetweenReads) return;
    read_ = now();
    if (!report_->read() && version_ > 0) return;
    ++version_;
    nlohmann::json page = report_->page(true);
    page["version"] = version_;
    data_ = page.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void noteLook() {
    const std::lock_guard lock(mutex_);
    lastLook_ = now();
    ++looks_;
    looked_.notify_all();
  }

  const std::string page_ = reportPage(nlohmann::json());
  std::string data_;
  std::uint64_t version_ = 0;
  std::optional<SteadyTime> read_;
  bool nice_ = false;

  std::mutex mutex_;
  std::unique_ptr<ReportData> report_;  // set once, then used only by the server's thread
  std::condition_variable looked_;
  std::optional<SteadyTime> lastLook_;
  std::uint64_t looks_ = 0;
};

LiveReport::LiveReport(HttpSettings settings)
    : pages_(std::make_unique<Pages>()),
      server_(
          std::move(settings),
          {{"/", [this](const HttpRequest&) { return pages_->page(); }},
           {"/data.json", [this](const HttpRequest& request) { return pages_->data(request); }}}) {}

LiveReport::~LiveReport() = default;

void LiveReport::show(const std::vector<RunPlace>& runs) { pages_->show(runs); }

std::string LiveReport::url() const { return server_.url(); }

void LiveReport::finish() { pages_->waitForLook(); }

}  // namespace cleave
