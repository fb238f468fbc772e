#include "server/sessions/probe_session.h"

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <string>
#include <utility>

#include "common/core/log.h"
#include "common/core/printable.h"
#include "common/files/environment.h"
#include "server/run/deadline.h"
#include "server/run/hello.h"

namespace cleave {
namespace {

namespace asio = boost::asio;

std::unique_ptr<Admission::Ticket> admit(const SessionContext& context, const std::string& identity,
                                         const wire::Hello& hello) {
  if (!context.settings.allowProbe) {
    throw UsageError("probe-not-allowed", "this server does not allow probes of the link",
                     "set probe.allowed to true in its configuration, or train without a probe")
        .about("probe.first");
  }
  if (hello.has_run_spec() || !hello.run_id().empty()) {
    throw UsageError("bad-run-spec", "a Hello requests a probe session and also names a run",
                     "request only one of them");
  }
  return context.admission.admitProbe(identity);
}

}  // namespace

ProbeSession::ProbeSession(const SessionContext& context, std::shared_ptr<Connection> connection,
                           const std::string& identity, std::uint64_t number,
                           const wire::Hello& hello)
    : context_(context),
      connection_(std::move(connection)),
      identity_(identity),
      number_(number),
      ticket_(admit(context, identity, hello)),
      link_(Role::server, *connection_, [this](const ProbeLink::Finished& stream) {
        (stream.up ? up_ : down_) += stream.bytes;
      }) {}

asio::awaitable<void> ProbeSession::accept() {
  const wire::HelloOk ok = helloOkOf(number_);
  co_await connection_->writeHandshakeFrame(FrameKind::helloOk, ok.SerializeAsString());
  if (context_.lines.take(identity_, now())) {
    logAbout(identity_, "")
        ->info("session {} from {}: a probe of the link", number_, connection_->peer());
  }
}

asio::awaitable<void> ProbeSession::serve() {
  const auto minutes = kMaxProbeSession / std::chrono::minutes(1);
  const RunError tooLong("probe-too-long",
                         fmt::format("the probe takes longer than {} minutes", minutes),
                         "probe again, with fewer or smaller sizes");
  const auto deadline =
      failAfter(kMaxProbeSession, connection_, std::make_exception_ptr(tooLong), context_.io);
  std::string end;
  try {
    end = "the client ended it (" + co_await connection_->run(link_) + ")";
  } catch (const std::exception& error) {
    end = std::string("ended: ") + printable(error.what());
    context_.refusals.count(error);
  }
  if (!context_.lines.take(identity_, now())) co_return;
  logAbout(identity_, "")
      ->info("session {}: probe: {}; {} bytes up, {} bytes down", number_, end, up_, down_);
}

}  // namespace cleave
