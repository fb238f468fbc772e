// cleave-server certs: creates, renews, revokes and lists certificates. Each command ends by
// printing the next command to run.
#include <spdlog/fmt/chrono.h>
#include <spdlog/fmt/fmt.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/core/units.h"
#include "common/program/program.h"
#include "server/access/certs.h"
#include "server/commands/commands.h"

namespace cleave {
namespace {

struct CertsOptions {
  std::string folder = "certs";
  std::vector<std::string> names;  // init: the server's names and addresses
  std::string client;
  bool renew = false;
  bool json = false;
};

constexpr const char* kReload = "kill -HUP $(pidof cleave-server)";

std::string dateText(std::time_t time) { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(time)); }
std::string momentText(std::time_t time) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(time));
}

// The name by which clients are most likely to reach the server.
std::string serverName(const CertificateFolder& certs) {
  const std::vector<std::string> names = certs.serverNames();
  return names.empty() ? "SERVER" : names.front();
}

// The folder or file that a command has made or changed.
int printPath(const std::string& path) {
  std::cout << nlohmann::ordered_json({{"path", path}}).dump(2) << std::endl;
  return 0;
}

int initCommand(const CertsOptions& options) {
  CertificateFolder certs(options.folder);
  if (options.renew) {
    certs.renewServer(options.names);
  } else {
    certs.init(options.names);
  }
  if (options.json) return printPath(certs.folder());
  const std::vector<std::string> names = certs.serverNames();
  std::cout << fmt::format(
      "{} a certificate for this server, valid for {} days, until {}: {}/server.crt\n"
      "It is valid for {}; to change the names, use --renew --name NAME\n",
      options.renew ? "renewed:" : "made an authority and", kCertificateDays,
      dateText(certs.time() + kCertificateDays * kDay), certs.folder(), fmt::join(names, ", "));
  if (options.renew) {
    std::cout << "next, make the running server reload it:\n  " << kReload << std::endl;
    return 0;
  }
  std::cout << fmt::format(
      "Keep {}/ca.key secret: anyone who has it can make certificates that this server accepts.\n"
      "next, for each client:\n  {}\n",
      certs.folder(), certs.command("client NAME"));
  return 0;
}

int clientCommand(const CertsOptions& options) {
  CertificateFolder certs(options.folder);
  if (options.renew) {
    certs.renewClient(options.client);
  } else {
    certs.makeClient(options.client);
  }
  const std::string place = certs.folder() + "/clients/" + options.client;
  if (options.json) return printPath(place);
  std::cout << fmt::format("{} a certificate for the client {}, valid for {} days, until {}: {}/\n",
                           options.renew ? "renewed:" : "made", options.client, kCertificateDays,
                           dateText(certs.time() + kCertificateDays * kDay), place);
  if (options.renew) {
    std::cout << "The previous certificate stays valid until it expires.\n"
                 "next, replace the files on the client's machine:\n"
              << fmt::format("  scp {}/* CLIENT:certs/", shellWord(place)) << std::endl;
    return 0;
  }
  std::cout << fmt::format(
      "next, copy it to the client's machine, and train there:\n"
      "  scp -r {} CLIENT:certs\n"
      "  cleave-client train --config configs/fashion_mnist.yaml --server {}:4800 --tls certs\n",
      shellWord(place), serverName(certs));
  return 0;
}

int revokeCommand(const CertsOptions& options) {
  CertificateFolder certs(options.folder);
  const std::size_t revoked = certs.revoke(options.client);
  if (options.json) return printPath(certs.folder() + "/revoked.crl");
  std::cout << (revoked == 0
                    ? fmt::format("every certificate of {} is already revoked\n", options.client)
                    : fmt::format("revoked {} of {}: {}/revoked.crl\n",
                                  countText(revoked, "certificate"), options.client,
                                  certs.folder()));
  std::cout
      << "next, make the running server reload the list, which also ends the open sessions of "
      << options.client << ":\n  " << kReload << std::endl;
  return 0;
}

// ---- list ----

const char* kindName(CertificateKind kind) {
  switch (kind) {
    case CertificateKind::authority:
      return "authority";
    case CertificateKind::server:
      return "server";
    case CertificateKind::client:
      return "client";
  }
  return "";
}

// Rounds a partial day up.
std::int64_t daysLeft(const IssuedCertificate& issued, std::time_t time) {
  return std::max<std::int64_t>(0, (issued.until - time + kDay - 1) / kDay);
}

// The command that renews a certificate that has expired or expires soon; empty if renewal is not
// necessary.
std::string renewal(const CertificateFolder& certs, const IssuedCertificate& issued) {
  const CertificateState state = stateOf(issued, certs.time());
  const bool ends = state == CertificateState::expiresSoon || state == CertificateState::expired;
  if (!ends || !issued.isNewest) return {};
  if (issued.kind == CertificateKind::client) {
    return certs.command("client " + issued.name + " --renew");
  }
  if (issued.kind == CertificateKind::server) return certs.command("init --renew");
  return "cleave-server certs init --folder NEW, and new certificates for all clients";
}

nlohmann::ordered_json jsonOf(const CertificateFolder& certs, const IssuedCertificate& issued) {
  nlohmann::ordered_json json = {{"kind", kindName(issued.kind)},
                                 {"name", issued.name},
                                 {"serial", issued.serial},
                                 {"names", issued.names},
                                 {"from", momentText(issued.from)},
                                 {"until", momentText(issued.until)},
                                 {"days_left", daysLeft(issued, certs.time())},
                                 {"state", stateName(stateOf(issued, certs.time()))},
                                 {"revoked", nullptr},
                                 {"newest", issued.isNewest},
                                 {"renew", nullptr}};
  if (issued.revoked) json["revoked"] = momentText(*issued.revoked);
  const std::string renew = renewal(certs, issued);
  if (!renew.empty()) json["renew"] = renew;
  return json;
}

std::string stateText(const IssuedCertificate& issued, std::time_t time) {
  const CertificateState state = stateOf(issued, time);
  std::string text = stateName(state);
  if (state == CertificateState::revoked) text += " " + dateText(*issued.revoked);
  if (state == CertificateState::valid || state == CertificateState::expiresSoon) {
    const auto days = daysLeft(issued, time);
    text += ", " + countText(static_cast<std::uint64_t>(days), "day") + " left";
    if (!issued.isNewest) text += ", renewed since";
  }
  return text;
}

int listJson(const CertificateFolder& certs, const std::vector<IssuedCertificate>& all) {
  nlohmann::ordered_json json = {{"folder", certs.folder()},
                                 {"certificates", nlohmann::ordered_json::array()}};
  for (const IssuedCertificate& issued : all) json["certificates"].push_back(jsonOf(certs, issued));
  std::cout << json.dump(2) << std::endl;
  return 0;
}

// Returns the purpose of the next commands, and the commands.
std::pair<std::string, std::vector<std::string>> afterList(
    const CertificateFolder& certs, const std::vector<IssuedCertificate>& all) {
  std::vector<std::string> renewals;
  bool hasClient = false;
  for (const IssuedCertificate& issued : all) {
    hasClient = hasClient || issued.kind == CertificateKind::client;
    if (std::string renew = renewal(certs, issued); !renew.empty()) renewals.push_back(renew);
  }
  if (!renewals.empty()) return {"renew the certificates that expire soon", renewals};
  if (!hasClient) return {"for each client", {certs.command("client NAME")}};
  return {"start the server with them",
          {"cleave-server serve --config configs/server.yaml --set listen.address=0.0.0.0 --set "
           "tls.enabled=true --set tls.folder=" +
           shellWord(certs.folder())}};
}

int listCommand(const CertsOptions& options) {
  const CertificateFolder certs(options.folder);
  const std::vector<IssuedCertificate> all = certs.list();
  if (options.json) return listJson(certs, all);
  std::size_t width = 0;
  for (const IssuedCertificate& issued : all) width = std::max(width, issued.name.size());
  for (const IssuedCertificate& issued : all) {
    const bool isClient = issued.kind == CertificateKind::client;
    std::cout << fmt::format("{:<{}}  {:<6}  until {}  {:<32}  {}\n", issued.name, width,
                             isClient ? "client" : "", dateText(issued.until), issued.serial,
                             stateText(issued, certs.time()));
  }
  const auto [why, commands] = afterList(certs, all);
  std::cout << "next, " << why << ":\n";
  for (const std::string& command : commands) std::cout << "  " << command << "\n";
  std::cout << std::flush;
  return 0;
}

CLI::App* addCommand(CLI::App& certs, CertsOptions& options, const std::string& name,
                     const std::string& help, const std::string& example) {
  CLI::App* command = certs.add_subcommand(name, help);
  command->add_option("--folder", options.folder, "The folder of the certificates")
      ->default_str(options.folder);
  command->add_flag("--json", options.json, "Prints JSON, for programs");
  command->footer("Example:\n  cleave-server certs " + example);
  return command;
}

}  // namespace

void addCertsCommands(CLI::App& app, std::function<int()>& command) {
  static CertsOptions options;
  CLI::App* certs =
      app.add_subcommand("certs", "Makes, renews, revokes and lists certificates for TLS");
  certs->require_subcommand(1);
  certs->footer("'cleave-server certs COMMAND --help' shows a command's options and an example.");

  CLI::App* init =
      addCommand(*certs, options, "init", "Makes your own CA, and this server's certificate",
                 "init --name train.example.org");
  init->add_option("--name", options.names,
                   "Host name or IP address that clients connect to; repeatable; "
                   "default: this machine's name and addresses")
      ->type_name("HOST")
      ->allow_extra_args(false);
  init->add_flag("--renew", options.renew,
                 "Makes a new key and certificate for the server only, with the same names");
  init->callback([&] { command = [&] { return initCommand(options); }; });

  CLI::App* client =
      addCommand(*certs, options, "client", "Makes a client's certificate", "client clinic-a");
  client->add_option("NAME", options.client, "The client's name, which is its identity: [a-z0-9-]")
      ->required();
  client->add_flag("--renew", options.renew,
                   "Makes a new key and certificate for a client that has one");
  client->callback([&] { command = [&] { return clientCommand(options); }; });

  CLI::App* revoke = addCommand(*certs, options, "revoke", "Revokes all certificates of a client",
                                "revoke clinic-a");
  revoke->add_option("NAME", options.client, "The client")->required();
  revoke->callback([&] { command = [&] { return revokeCommand(options); }; });

  CLI::App* list = addCommand(*certs, options, "list",
                              "Lists all certificates, and marks those that expire within 14 days",
                              "list --json");
  list->callback([&] { command = [&] { return listCommand(options); }; });
}

}  // namespace cleave
