// Records the link's activity as rows of a CSV file, and as a summary at the end.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "common/files/record.h"
#include "tools/link/relay.h"

namespace cleave::link {

// The columns of the file, in order; docs/link.md describes them.
const std::vector<std::string>& statsColumns();

// io thread only.
class Stats {
 public:
  // Writes one row per direction and interval once the context runs. `file` empty: no file. Throws
  // RunError if the file cannot be created.
  Stats(boost::asio::io_context& context, const Relay& relay, const std::string& file,
        Time interval);
  // Writes rows for the last, incomplete interval. Throws RunError if rows could not be written.
  void stop();
  // Example: "12.3 s, 4 connections; up 31 MB at 20.1 Mbit/s, …"
  std::string summary() const;

 private:
  using Clock = std::chrono::steady_clock;

  void wait();
  void addRows();
  void addRow(const char* direction, const Shaper& shaper, Shaper::Totals& before, double seconds,
              const std::string& time);

  const Relay& relay_;
  Recorder recorder_;
  std::shared_ptr<Recorder::Table> table_;
  const Clock::duration interval_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
  Shaper::Totals up_;  // totals at the time last_
  Shaper::Totals down_;
  boost::asio::steady_timer timer_;
};

}  // namespace cleave::link
