// Serves the report of runs that may still be running; the page polls once per second.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/report/run_place.h"
#include "common/http/http_server.h"

namespace cleave {

class LiveReport {
 public:
  // Starts serving on its own thread. Throws the same errors as HttpServer.
  explicit LiveReport(HttpSettings settings);
  ~LiveReport();

  // Sets the runs to show; until then the page is empty. Call once. The server's thread reads the
  // files at low priority. It reads only on request, and only what was appended since.
  void show(const std::vector<RunPlace>& runs);

  std::string url() const;
  // If a browser polled recently, waits up to 2.5 s until it has received the last rows.
  void finish();

 private:
  class Pages;
  std::unique_ptr<Pages> pages_;  // outlives the server
  HttpServer server_;
};

}  // namespace cleave
