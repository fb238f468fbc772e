#include "tools/link/stats.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "common/core/units.h"

namespace cleave::link {
namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string describe(const char* direction, const Shaper& shaper, double time) {
  const Shaper::Totals& totals = shaper.totals();
  const auto bytes = static_cast<double>(totals.bytes);
  return fmt::format("{} {} at {}, {} drops", direction, bytesText(bytes),
                     totals.bytes == 0 ? "0 kbit/s" : rateText(bytes / time), totals.drops);
}

}  // namespace

const std::vector<std::string>& statsColumns() {
  static const std::vector<std::string> columns = {
      "time",        "direction",   "interval_seconds", "connections", "bytes",
      "rate_mbit_s", "queue_bytes", "flight_bytes",     "drops",       "stall_seconds"};
  return columns;
}

Stats::Stats(boost::asio::io_context& context, const Relay& relay, const std::string& file,
             Time interval)
    : relay_(relay),
      table_(file.empty() ? nullptr : recorder_.table(file, statsColumns())),
      interval_(interval),
      timer_(context) {
  if (table_) wait();
}

void Stats::wait() {
  // Intervals end at multiples of the interval since the start, even if this row is late.
  timer_.expires_at(begin_ + ((Clock::now() - begin_) / interval_ + 1) * interval_);
  timer_.async_wait([this](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    addRows();
    if (table_->error() != 0) recorder_.flush();  // throws the write error
    wait();
  });
}

void Stats::stop() {
  timer_.cancel();
  if (!table_) return;
  addRows();
  recorder_.flush();
}

void Stats::addRows() {
  const Clock::time_point now = Clock::now();
  const double passed = seconds(now - std::exchange(last_, now));
  const std::string time = utcNow();
  addRow("up", relay_.up(), up_, passed, time);
  addRow("down", relay_.down(), down_, passed, time);
}

void Stats::addRow(const char* direction, const Shaper& shaper, Shaper::Totals& before,
                   double passed, const std::string& time) {
  const Shaper::Totals& totals = shaper.totals();
  const std::uint64_t bytes = totals.bytes - before.bytes;
  table_->row({time, std::string(direction), passed,
               static_cast<std::uint64_t>(relay_.openConnections()), bytes,
               static_cast<double>(bytes) * 8e-6 / passed,
               static_cast<std::uint64_t>(shaper.queuedBytes()),
               static_cast<std::uint64_t>(shaper.flightBytes()), totals.drops - before.drops,
               seconds(totals.stalled - before.stalled)});
  before = totals;
}

std::string Stats::summary() const {
  const double time = seconds(Clock::now() - begin_);
  return fmt::format("{:.1f} s, {}; {}; {}", time,
                     countText(relay_.acceptedConnections(), "connection"),
                     describe("up", relay_.up(), time), describe("down", relay_.down(), time));
}

}  // namespace cleave::link
