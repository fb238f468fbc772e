// Errors that a user, a peer, a file or the network can cause. Each says what went wrong and where
// (what()), and how to mend it (fix()). Our own bugs are assertions instead.
#pragma once

#include <stdexcept>
#include <string>

namespace cleave {

// The codes travel in Refused and Failure, and stand in logs: lower case with hyphens, such as
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
  // One sentence of advice; empty where there is none to give.
  const std::string& fix() const { return fix_; }
  // 1: a run failed. 2: wrong use or unsafe configuration.
  int exitCode() const { return exitCode_; }
  // After so long the same may succeed; 0: not known, or never.
  double retrySeconds() const { return retrySeconds_; }

 private:
  std::string code_;
  std::string fix_;
  int exitCode_;
  double retrySeconds_;
};

// Wrong use: flags, configuration, files that do not fit. Ends a program with exit code 2.
class UsageError : public Error {
 public:
  UsageError(std::string code, const std::string& sentence, std::string fix = "")
      : Error(std::move(code), sentence, std::move(fix), 2) {}
};

// A run that began and failed: the network, the peer, the disk, the numbers. Ends a program with
// exit code 1.
class RunError : public Error {
 public:
  RunError(std::string code, const std::string& sentence, std::string fix = "",
           double retrySeconds = 0)
      : Error(std::move(code), sentence, std::move(fix), 1, retrySeconds) {}
};

// The peer broke the protocol (proto/PROTOCOL.md). Ends its session, and reaches it as a Failure.
class ProtocolError : public RunError {
 public:
  using RunError::RunError;
};

}  // namespace cleave
