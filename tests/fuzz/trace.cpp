// Fuzz target: bytes that are read as a server's trace. Only ProtocolError is allowed. An accepted
// trace must be the same after writing and reading it again.
#include <algorithm>

#include "common/engine/trace.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

constexpr TraceWindow kWindow{2, 3};
constexpr std::uint32_t kMicroBatches = 4;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const Trace trace = traceFromServer(bytes, kWindow, kMicroBatches, Place{});
    if (!std::ranges::equal(toBytes(trace), bytes)) find("a trace changes when written again");
  } catch (const ProtocolError&) {
  }
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  Trace trace;
  trace.spans.push_back({TraceActivity::compute, static_cast<std::uint8_t>(ActionKind::bodyForward),
                         0, 1, 2, 100, 200});
  trace.spans.push_back({TraceActivity::send, 2, 0, 3, 4, 200, 210});
  trace.dropped = 7;
  return {{"none", toBytes({})}, {"two spans", toBytes(trace)}};
}
