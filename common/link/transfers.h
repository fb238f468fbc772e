// Records of transfers over a link, as measured by one of its sides.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "common/codec/tensor.h"
#include "common/net/streams/tcp.h"
#include "common/topology/key.h"

namespace cleave {

// One transfer of a tensor: a row of transfers.csv.
struct TransferRecord {
  bool sent = false;
  Key key;
  std::string codec;
  TensorSpec spec;  // empty shape for weights/body and grads/body
  std::uint64_t rawBytes = 0;
  std::uint64_t wireBytes = 0;  // headers and metadata included
  std::optional<double> encodeSeconds;
  std::optional<double> queueSeconds;
  std::optional<double> wireSeconds;  // first byte to last, at the receiver
  std::optional<double> decodeSeconds;
  std::optional<double> snrDb;   // the codec's SNR; measured by the sender for some tensors
  std::optional<LinkInfo> link;  // nullopt if the connection was closed
};

// Sums since the link started. "Up" is from the client to the server.
struct LinkTotals {
  std::uint64_t rawUp = 0, rawDown = 0;
  std::uint64_t wireUp = 0, wireDown = 0;  // tensors on the wire, from recorded transfers
  std::uint64_t blobUp = 0, blobDown = 0;  // weights/body and grads/body, on the wire
  std::uint64_t controlUp = 0, controlDown = 0;
  double encodeSeconds = 0, decodeSeconds = 0;  // on this side
  // Per tensor flow; codec times are those of both sides, as in transfers.csv.
  struct FlowTotals {
    std::uint64_t tensors = 0;
    std::uint64_t wireBytes = 0;
    double encodeSeconds = 0, decodeSeconds = 0;
  };
  FlowMap<FlowTotals> flows;
  // Throughput in the busiest 100 ms, bytes per second; of several links, that of the busiest.
  double peakUp = 0, peakDown = 0;
  std::uint64_t transfers = 0;
  std::uint64_t reconnects = 0;  // connections that replaced a broken one
  double offlineSeconds = 0;     // total time without a connection, after the first one

  // Adds the totals of another link of the same run.
  LinkTotals& operator+=(const LinkTotals& other);

  std::uint64_t up() const { return wireUp + blobUp + controlUp; }
  std::uint64_t down() const { return wireDown + blobDown + controlDown; }
};

}  // namespace cleave
