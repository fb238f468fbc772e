// Errors caused by a user, a peer, a file or the network. Each says what went wrong and where
// (what()), and how to fix it (fix()). Bugs in Cleave itself are assertions instead.
#pragma once

#include <stdexcept>
#include <string>

namespace cleave {

// Codes are sent in Refused and Failure and written to logs: lower case with hyphens, such as
// "unknown-codec".
class Error : public std::runtime_error {
 public:
  Error(std::string code, const std::string& sentence, std::string fix, int exitCode,
        double retrySeconds = 0)
      : std::runtime_error(sentence),
        code_(std::move(code)),
        fix_(std::move(fix)),
        exitCode_(exitCode),
        retrySeconds_(retrySeconds) {}

  const std::string& code() const { return code_; }
  // One sentence of advice, or empty.
  const std::string& fix() const { return fix_; }
  // 1: a run failed. 2: invalid use or unsafe configuration.
  int exitCode() const { return exitCode_; }
  // The delay after which a retry may succeed; 0: unknown, or never.
  double retrySeconds() const { return retrySeconds_; }

 private:
  std::string code_;
  std::string fix_;
  int exitCode_;
  double retrySeconds_;
};

// Invalid use: flags, configuration, files that do not match. The program exits with code 2.
class UsageError : public Error {
 public:
  UsageError(std::string code, const std::string& sentence, std::string fix = "")
      : Error(std::move(code), sentence, std::move(fix), 2) {}
};

// A run that started and failed: the network, the peer, the disk, the numbers. The program exits
// with code 1.
class RunError : public Error {
 public:
  RunError(std::string code, const std::string& sentence, std::string fix = "",
           double retrySeconds = 0)
      : Error(std::move(code), sentence, std::move(fix), 1, retrySeconds) {}
};

// The peer violated the protocol (proto/PROTOCOL.md). Ends its session; the peer receives it as a
// Failure.
class ProtocolError : public RunError {
 public:
  using RunError::RunError;
};

}  // namespace cleave
