// Serves the report of runs that may still be in progress. The page polls for new data once per
// second.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/report/records/run_place.h"
#include "common/http/http_server.h"

namespace cleave {

class LiveReport {
 public:
  // Starts serving on a separate thread. Throws the same errors as HttpServer.
  explicit LiveReport(HttpSettings settings);
  ~LiveReport();

  // Sets the runs to show; until then the page is empty. Call once. The server's thread reads the
  // files, at low priority. It reads only when a page requests data, and only the content appended
  // since the last read.
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
