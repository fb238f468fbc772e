// The edges of a run: its server's direct links to the servers of the bodies before and after its
// own. The flows at a cut with an edge cross that edge, and all others the link to the client. io
// thread, unless stated otherwise.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "common/core/error.h"
#include "common/link/tensor_link.h"
#include "common/run/plan.h"
#include "proto/wire.pb.h"
#include "server/access/server_certificates.h"
#include "server/config/settings.h"
#include "server/run/run_edge.h"

namespace cleave {

// Whether the Hello of a run asks for edges.
inline bool asksForEdges(const wire::Hello& hello) {
  return hello.has_edge_before() || hello.has_edge_after();
}
// Checks whether the run may have the edges that its Hello asks for. Throws UsageError
// "edges-not-accepted", "edge-not-allowed", "bad-codec-spec"; ProtocolError "bad-metadata".
void checkEdges(const wire::Hello& hello, const RunPlan& plan, const EdgeSettings& settings);

class RunEdges {
 public:
  // The edges that the Hello asks for, which checkEdges() has accepted. `failed`: see RunEdge.
  RunEdges(const wire::Hello& hello, const ServerSettings& settings,
           const ServerCertificates& certificates, const boost::asio::any_io_executor& io,
           const std::function<void(const RunError&)>& failed);

  bool isEmpty() const { return edges_.empty(); }
  bool hasBefore() const { return before_ != nullptr; }
  // The edge before the body, if this is its token; else null.
  std::shared_ptr<RunEdge> find(const std::string& token) const;

  // Call once, before start(): the link to the client, whose options these are, carries only the
  // flows that cross no edge.
  void takeFlows(TensorLinkOptions& client) const;
  // Call once; opens the edges. `client`: as takeFlows() has left them. The functions are those of
  // TensorLink::Callbacks.
  void start(const TensorLinkOptions& client, const std::shared_ptr<BufferPool>& pool,
             const std::function<void(Message)>& deliver,
             const std::function<void(const TransferRecord&)>& record);
  // A link over which the engine reaches all of them; `client` itself if there are no edges.
  std::shared_ptr<EngineLink> with(std::shared_ptr<TensorLink> client) const;
  // The tensor links, in the order of the cuts.
  std::vector<TensorLink*> links() const;

  // When something other than a Ping last crossed an edge; nullopt: no edge is connected.
  std::optional<SteadyTime> lastActivity() const;

  // Ends the edges. They keep `held` while their links are used.
  void close(const std::shared_ptr<const void>& held);

 private:
  class Router;
  std::shared_ptr<RunEdge> before_, after_;      // null: none
  std::vector<std::shared_ptr<RunEdge>> edges_;  // those that are not null
};

}  // namespace cleave
