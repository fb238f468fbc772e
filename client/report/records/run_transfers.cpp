// Reads transfers.csv of a run.
#include <algorithm>

#include "client/report/records/run_side.h"

namespace cleave {
void RunReader::readTransfers(Side& side, bool isClient) {
  const TransferColumns& c = side.ofTransfers;
  side.transfers.read([&](const CsvRow& row) {
    const double at = side.since(row, c.time);
    const auto flow = flowFromName(row.text(c.flow));
    const std::string_view role = row.text(c.role), phase = row.text(c.phase);
    if (!flow) row.garble(c.flow);
    if (role != "send" && role != "recv") row.garble(c.role);
    const auto raw = row.number(c.raw), wire = row.number(c.wire);
    if (!raw) row.garble(c.raw);
    if (!wire) row.garble(c.wire);
    const auto encode = row.number(c.encode), queue = row.number(c.queue);
    const auto seconds = row.number(c.wireSeconds), decode = row.number(c.decode);
    const auto snr = row.number(c.snr), delivery = row.number(c.deliveryRate);
    const auto roundTrip = row.number(c.roundTrip), retransmits = row.number(c.retransmits);
    const double step = placeOf(row, c.step, row.number(c.step), kMaxStepNumber);
    if (row.isGarbled()) return;

    if (id_.empty()) id_ = row.text(c.run);
    SideFigures& figures = side.figures;
    FlowFigures& sums = figures.flows[*flow];
    ++sums.transfers;
    sums.rawBytes += *raw;
    sums.wireBytes += *wire;
    sums.encodeSeconds += encode.value_or(0);
    sums.decodeSeconds += decode.value_or(0);
    if (sums.codec != row.text(c.codec)) sums.codec = row.text(c.codec);
    if (snr) {
      sums.snrMin = sums.snrs == 0 ? *snr : std::min(sums.snrMin, *snr);
      ++sums.snrs;
      sums.snrSum += *snr;
      if (phase == "train" && !isBlob(*flow)) {
        figures.snr.try_emplace(*flow, grids_.step).first->second.add(step, *snr);
      }
    }
    if (isClient && phase == "train" && !isBlob(*flow))
      serverSteps_.addCodec(step, (role == "send" ? decode : encode).value_or(0));
    const bool up = (role == "send") == isClient;
    sums.up += up ? 1 : 0;
    const std::size_t direction = up ? 0 : 1;
    // The transfer of the model does not show what codecs and the link do in a step.
    if (isBlob(*flow)) {
      figures.blobBytes[direction] += *wire;
    } else {
      figures.bytes[direction].add(at, seconds.value_or(0), *wire);
    }
    if (seconds && *seconds > 0 && !isBlob(*flow)) {
      figures.transferRate[direction].add(at, *wire / *seconds);
      figures.transferRates[direction].add(*wire / *seconds);
      figures.transferSeconds[direction].add(encode.value_or(0) + queue.value_or(0) + *seconds +
                                             decode.value_or(0));
    }
    if (delivery) figures.deliveryRate.add(at, *delivery);
    if (roundTrip) {
      figures.roundTrip.add(at, *roundTrip);
      figures.roundTrips.add(*roundTrip);
    }
    if (retransmits) figures.retransmits.add(at, *retransmits);
  });
}

}  // namespace cleave
