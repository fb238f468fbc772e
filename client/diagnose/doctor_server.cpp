// The checks of cleave-client doctor that concern the server and the link to it.
#include <openssl/ssl.h>
#include <spdlog/fmt/fmt.h>

#include <ctime>

#include "client/diagnose/admission.h"
#include "client/diagnose/doctor.h"
#include "client/diagnose/probe.h"
#include "client/diagnose/probe_report.h"
#include "common/core/printable.h"
#include "common/core/units.h"
#include "common/files/environment.h"
#include "common/files/identity.h"
#include "common/link/wire_messages.h"
#include "common/net/streams/certificate.h"
#include "common/net/streams/tls_peer.h"

namespace cleave {
namespace {

constexpr double kDay = 86400;  // seconds
constexpr const char* kSays = "reachable";

// ---- Certificates ----

// Returns the TLS settings from the command line, or otherwise from the configuration if it is
// readable.
TlsSettings tlsOf(const RunOptions& options) {
  if (!options.tls.empty()) return {true, options.tls};
  if (options.common.config.empty()) return {};
  try {
    Config config = loadConfig(options.common);
    return readClientSettings(config).tls;
  } catch (const Error&) {
    return {};  // the configuration's check has already reported the error
  }
}

std::string nameIn(const X509* certificate) {
  for (const std::string& uri : alternativeNamesOf(certificate).uris) {
    if (!uri.starts_with(kClientUri)) continue;
    const std::string name = uri.substr(kClientUri.size());
    if (isClientName(name)) return name;
  }
  return "a client without a name";
}

Check checkCertificates(const TlsSettings& settings, std::shared_ptr<const TlsContext>& context) {
  if (!settings.enabled) {
    return {"certificates", Finding::skipped, "not in use; --tls DIR enables TLS", ""};
  }
  context = TlsContext::load(settings.folder, TlsRole::client);
  const X509* own = SSL_CTX_get0_certificate(context->native());
  const std::time_t end = timeOf(X509_get0_notAfter(own)).value_or(0);
  const double days = std::difftime(end, std::time(nullptr)) / kDay;
  Check check{"certificates",
              Finding::ok,
              fmt::format("{}/client.crt belongs to {} and expires on {}, in {:.0f} days; no other "
                          "user can read its key",
                          settings.folder, nameIn(own), timeText(end), days),
              "",
              {{"days_left", days}}};
  const std::string warning = context->warning();
  if (!warning.empty()) {
    check.finding = days <= 0 ? Finding::fail : Finding::warn;
    check.sentence = warning;
    check.hint =
        "renew it: cleave-server certs client NAME --renew, or cleave-server certs init --renew";
  }
  return check;
}

// ---- The connection to the server ----

enum class Stage : std::uint8_t { reach, tls, server, link };

// The stage that a connection had reached when this error ended it.
Stage stageOf(const Error& error, bool withTls) {
  if (error.key() == "--server") return Stage::reach;
  // With TLS, a server that refuses a connection may close it without a message.
  // One that accepts TLS, but does not answer, is silent later: a literal tells them apart.
  const bool isSilent =
      withTls && error.kind() == ErrorKind::link && error.code() != "hello-timeout";
  if (error.key().starts_with("tls.") || isSilent) return Stage::tls;
  const bool isRefused = error.key() == "probe.first" || error.retrySeconds() > 0;
  return isRefused ? Stage::link : Stage::server;
}

Check checkOfTls(const ServerAddress& address) {
  if (address.tls) {
    return {"tls", Finding::ok, "TLS 1.3; the server's certificate is for " + address.host, ""};
  }
  const bool isHere =
      address.host == "localhost" || address.host == "::1" || address.host.starts_with("127.");
  if (isHere) return {"tls", Finding::skipped, "not in use: the server is on this machine", ""};
  return {"tls", Finding::warn,
          "the connection to " + address.host + " is neither encrypted nor authenticated",
          "use TLS (docs/security.md), then pass --tls DIR"};
}

Check checkOfServer(const ProbeResult& result) {
  Check check{"server",
              Finding::ok,
              fmt::format("{}; wire format version {}", result.serverSoftware, kWireVersion),
              "",
              {{"software", result.serverSoftware}, {"wire_version", kWireVersion}}};
  if (result.serverSoftware != softwareVersion()) {
    check.finding = Finding::warn;
    check.hint = "install the same version on both machines; this one has " + softwareVersion();
  }
  return check;
}

Check checkOfLink(const ProbeResult& result) {
  const nlohmann::ordered_json probe = probeJson(result);
  const bool isOk = isReliable(result);
  return {"link",
          isOk ? Finding::ok : Finding::warn,
          sentenceOf(result),
          isOk ? "" : probeAgain(result),
          {{"round_trip_seconds", result.roundTripSeconds}, {"fit", probe.at("fit")}}};
}

// Reports the stages before the failed one as passed; later ones could not be tested.
void explain(const ServerAddress& address, const Error& error, const Findings& found) {
  const Stage stage = stageOf(error, address.tls != nullptr);
  if (stage == Stage::reach) return found(failedCheck("reach", error));
  found({"reach", Finding::ok, address.text() + ": " + kSays, ""});
  if (stage == Stage::tls) return found(failedCheck("tls", error));
  found(checkOfTls(address));
  if (stage == Stage::server) return found(failedCheck("server", error));
  found({"server",
         Finding::ok,
         fmt::format("a Cleave server; wire format version {}", kWireVersion),
         "",
         {{"wire_version", kWireVersion}}});
  Check link = failedCheck("link", error);
  link.finding = Finding::warn;
  found(link);
}

// What a trial does not ask for.
std::string uncheckedText(const ClientSettings& settings, const Replica& replica) {
  if (!replica.isAlone()) return "; not checked: its rank and its group of replicas";
  return settings.hasEdges() ? "; not checked: its direct links" : "";
}

// With whom a member of a cohort was compared; empty without a cohort.
std::string memberText(const ClientSettings& settings, const wire::HelloOk& answer) {
  if (!settings.cohort.exists()) return "";
  if (answer.connected().empty()) {
    return fmt::format("; no other member of the cohort {} is connected to compare with",
                       settings.cohort.id);
  }
  return fmt::format("; {} fits the cohort {} (compared with {})", settings.member,
                     settings.cohort.id,
                     printable(fmt::format("{}", fmt::join(answer.connected(), ", "))));
}

Check checkOfAdmission(std::optional<PreparedRun>& run, std::size_t body,
                       const ServerAddress& address) {
  if (!run) return {"admission", Finding::skipped, "requires a valid configuration", ""};
  try {
    const wire::HelloOk answer = askForAdmission(*run, body, address);
    const auto needed = static_cast<double>(serverBytes(run->bodies[body]));
    return {"admission",
            Finding::ok,
            fmt::format("the server would admit this run; it needs about {} there, and computes on "
                        "{} with {}{}{}",
                        bytesText(needed), answer.device(), countText(answer.threads(), "thread"),
                        uncheckedText(run->settings, run->bodies[body].stage.replica),
                        memberText(run->settings, answer)),
            "",
            {{"needed_bytes", needed}, {"device", answer.device()}, {"threads", answer.threads()}}};
  } catch (const Error& error) {
    Check check = failedCheck("admission", error);
    // The refusal may pass, for example when another session has ended.
    if (error.retrySeconds() > 0) check.finding = Finding::warn;
    return check;
  }
}

// Examines the server of this body.
void examineOne(const ServerAddress& address, std::optional<PreparedRun>& run, std::size_t body,
                double seconds, const Findings& found) {
  ProbeOptions probe;
  probe.max = 10'000'000;
  probe.repeat = 2;
  probe.seconds = seconds;
  probe.retrySeconds = 0;
  try {
    const ProbeResult result = probeLink(address, probe);
    found({"reach", Finding::ok, address.text() + ": " + kSays, ""});
    found(checkOfTls(address));
    found(checkOfServer(result));
    found(checkOfLink(result));
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::interrupt) throw;
    explain(address, error, found);
    if (stageOf(error, address.tls != nullptr) != Stage::link) return;
  }
  found(checkOfAdmission(run, body, address));
}

}  // namespace

void examineServers(const RunOptions& options, std::optional<PreparedRun>& run, double seconds,
                    const Findings& found) {
  std::shared_ptr<const TlsContext> context;
  const TlsSettings tls = tlsOf(options);
  const Check certificates =
      checked("certificates", [&] { return checkCertificates(tls, context); });
  found(certificates);
  std::vector<ServerAddress> servers = run ? run->servers : std::vector<ServerAddress>();
  if (!options.server.empty()) servers = allServers(parseAddresses(options.server));
  if (servers.empty()) {
    return found({"reach", Finding::skipped, "not given; add --server HOST:PORT", ""});
  }
  if (tls.enabled && !context) {
    return found({"reach", Finding::skipped, "requires valid certificates", ""});
  }
  for (std::size_t body = 0; body < servers.size(); ++body) {
    servers[body].tls = context;
    examineOne(servers[body], run, body, seconds, [&](Check check) {
      if (servers.size() > 1) {
        check.sentence = fmt::format("server {}: {}", body + 1, check.sentence);
        check.figures["server"] = body + 1;
      }
      found(check);
    });
  }
}

}  // namespace cleave
