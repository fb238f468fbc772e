// The log: to stderr, and to a run's log.txt, through spdlog's own thread.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

namespace cleave {

// Levels: "trace", "debug", "info", "warn", "error". The process's log, to stderr with a time stamp
// and `program`. Throws UsageError for another level.
void startLog(const std::string& program, const std::string& level);
// The process's log; before startLog() one that writes to stderr.
std::shared_ptr<spdlog::logger> processLog();
// A run's log: to its file (created or appended to), and on to the process's log with `prefix`
// before each line. Throws RunError where the file can't be opened.
std::shared_ptr<spdlog::logger> runLog(const std::string& path, const std::string& prefix);
// The same, to its file alone.
std::shared_ptr<spdlog::logger> fileLog(const std::string& path);
// Waits until everything logged so far is written. Before the process ends.
void flushLog();

}  // namespace cleave
