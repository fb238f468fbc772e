#include "common/link/transfers.h"

#include <algorithm>

namespace cleave {

LinkTotals& LinkTotals::operator+=(const LinkTotals& other) {
  rawUp += other.rawUp;
  rawDown += other.rawDown;
  wireUp += other.wireUp;
  wireDown += other.wireDown;
  blobUp += other.blobUp;
  blobDown += other.blobDown;
  controlUp += other.controlUp;
  controlDown += other.controlDown;
  encodeSeconds += other.encodeSeconds;
  decodeSeconds += other.decodeSeconds;
  for (const auto& [flow, more] : other.flows) {
    FlowTotals& sum = flows[flow];
    sum.tensors += more.tensors;
    sum.wireBytes += more.wireBytes;
    sum.encodeSeconds += more.encodeSeconds;
    sum.decodeSeconds += more.decodeSeconds;
  }
  peakUp = std::max(peakUp, other.peakUp);
  peakDown = std::max(peakDown, other.peakDown);
  transfers += other.transfers;
  reconnects += other.reconnects;
  offlineSeconds += other.offlineSeconds;
  return *this;
}

}  // namespace cleave
