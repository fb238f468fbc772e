// The log: to stderr, and to a run's log.txt, written by spdlog's own thread.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

namespace cleave {

// Starts the process's log: to stderr, with a timestamp and `program`. Levels: "trace", "debug",
// "info", "warn", "error". Throws UsageError for any other.
void startLog(const std::string& program, const std::string& level);
// From now on, writes the process's lines to stderr as JSON, an object per line: time, level,
// logger (`program`), the fields of logAbout(), message. Files of runs stay text.
void logAsJson(const std::string& program);
// The process's log, for lines about an identity and its run. As JSON, each line has the fields
// `identity` and `run`, unless they are empty; text is as in processLog().
std::shared_ptr<spdlog::logger> logAbout(const std::string& identity, const std::string& run);
// The process's log. Before startLog() it writes to stderr without `program`.
std::shared_ptr<spdlog::logger> processLog();
// A run's log: written to its file (created or appended to), and forwarded to the process's log
// with `prefix` before each line. Throws RunError if the file cannot be opened.
std::shared_ptr<spdlog::logger> runLog(const std::string& path, const std::string& prefix);
// From now on, writes the process's lines to the file of this log too, which runLog() has returned.
// For a process with one run. Call at most once.
void addToProcessLog(const std::shared_ptr<spdlog::logger>& run);
// Like runLog(), but writes only to the file.
std::shared_ptr<spdlog::logger> fileLog(const std::string& path);
// Waits until everything logged so far is written. Call before the process exits.
void flushLog();

}  // namespace cleave
