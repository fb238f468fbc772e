// Serves the report of runs that may still go on: the page asks for what is new once a second.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/report/run_place.h"
#include "common/http/http_server.h"

namespace cleave {

class LiveReport {
 public:
  // Serves from then on, by a thread of its own. Throws as HttpServer does.
  explicit LiveReport(HttpSettings settings);
  ~LiveReport();

  // What the page shows from then on; before, it is empty. The runs' files are read when someone
  // looks, and only what they have gained, by the server's thread, with little priority. Once.
  void show(const std::vector<RunPlace>& runs);

  std::string url() const;
  // Where a page was open a moment ago, waits until it has the last rows: a second or two.
  void finish();

 private:
  class Pages;
  std::unique_ptr<Pages> pages_;  // outlives the server
  HttpServer server_;
};

}  // namespace cleave
