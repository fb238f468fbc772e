#include "server/sessions/operator_requests.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "common/core/log.h"
#include "common/core/process.h"
#include "server/status/ask_server.h"
#include "server/status/status.h"

namespace cleave {
namespace {

// Nullopt unless the whole text is a number.
std::optional<std::uint64_t> sessionNumber(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

}  // namespace

OperatorRequests::OperatorRequests(const SessionContext& context, const SessionTable& sessions,
                                   std::string address)
    : context_(context), sessions_(sessions), address_(std::move(address)) {}

std::string OperatorRequests::answer(const std::string& request) const {
  const std::string_view line = request;
  if (!line.starts_with(kEndRequest)) return status();
  const auto number = sessionNumber(line.substr(std::string_view(kEndRequest).size()));
  return nlohmann::json({{"ended", number && endSession(*number)}}).dump() + "\n";
}

std::string OperatorRequests::status() const {
  ServerStatus status;
  status.address = address_;
  status.device = context_.settings.device;
  status.unconfined = context_.settings.unconfined;
  status.hasTls = context_.certificates.tls() != nullptr;
  status.isShuttingDown = sessions_.isDraining();
  status.seconds = secondsSince(start_);
  status.connections = sessions_.size();
  status.maxSessions = context_.settings.maxSessions;
  status.admittedBytes = context_.admission.admittedBytes();
  status.maxBytes = context_.settings.memoryBytes;
  status.residentBytes = residentBytes();
  status.refusals = context_.refusals.counts();
  sessions_.forEach([&](const Session& session) {
    if (auto known = session.status()) status.sessions.push_back(std::move(*known));
  });
  for (SessionStatus& parked : context_.runs.parked()) status.sessions.push_back(std::move(parked));
  return statusJson(std::move(status));
}

// Returns whether the session existed.
bool OperatorRequests::endSession(std::uint64_t number) const {
  const RunError error("ended-by-operator", "the server's operator has ended this session",
                       "ask the operator before you rerun it");
  bool ended = false;
  const auto log = [&] {
    processLog()->info("the operator ends session {}", number);
    ended = true;
  };
  sessions_.forEach([&](Session& session) {
    if (session.number() != number || !session.status()) return;
    log();
    session.end(error);
  });
  context_.runs.endParked(error, [&](const Seat& seat) {
    if (seat.session() != number) return false;
    log();
    return true;
  });
  return ended;
}

}  // namespace cleave
