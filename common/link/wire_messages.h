// Conversion between plain values and the protobuf metadata of frames. All metadata from a peer is
// checked here: these functions throw ProtocolError, and the values that they return are valid.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/codec/tensor.h"
#include "common/engine/messages.h"
#include "common/link/arrived.h"
#include "common/net/frames/metadata.h"
#include "common/topology/cohort.h"
#include "common/topology/key.h"
#include "proto/wire.pb.h"

namespace cleave {

// Durations from a peer are added up and written to files. Throws ProtocolError unless the value is
// finite and >= 0.
double checkedSeconds(double seconds);

// Throws ProtocolError unless the value is finite.
double checkedSnr(double snrDb);

void toWire(const Key& key, wire::Key& proto);
Key keyFromWire(const wire::Key& proto);
// Throws ProtocolError if there are too many, or one is too large.
std::vector<InsertBasis> basesFromWire(
    const google::protobuf::RepeatedPtrField<wire::InsertBasis>& proto);
void basesToWire(const std::vector<InsertBasis>& bases,
                 google::protobuf::RepeatedPtrField<wire::InsertBasis>& proto);
void toWire(const TensorSpec& spec, wire::TensorSpec& proto);
TensorSpec specFromWire(const wire::TensorSpec& proto);

std::string toWire(const BodyDone& done);
BodyDone bodyDoneFromWire(std::span<const std::byte> metadata);
std::string toWire(const StepDecision& decision);
StepDecision decisionFromWire(std::span<const std::byte> metadata);
std::string toWire(const StepOk& ok);
StepOk stepOkFromWire(std::span<const std::byte> metadata);
std::string toWire(const Fetch& fetch);
Fetch fetchFromWire(std::span<const std::byte> metadata);

std::string toWire(const Resume& resume);
Resume resumeFromWire(std::span<const std::byte> metadata);
std::string toWire(const Saved& saved);
Saved savedFromWire(std::span<const std::byte> metadata);
std::string toWire(const Missing& missing);
Missing missingFromWire(std::span<const std::byte> metadata);
std::string toWire(const Drain& drain);
Drain drainFromWire(std::span<const std::byte> metadata);

// The sample numbers (indices in the training data) of a training batch, or of a part of it.
struct SampleNumbers {
  std::uint64_t step = 0;
  std::uint32_t first = 0;  // position in the batch
  std::vector<std::uint32_t> numbers;
};
// Maximum sample numbers per frame, so that a frame is within kMaxMetadataBytes.
inline constexpr std::size_t kMaxSampleNumbers = 8192;
std::string toWire(const SampleNumbers& samples);
SampleNumbers sampleNumbersFromWire(std::span<const std::byte> metadata);

// The receiver's report to the sender of a tensor.
struct ReceivedReport {
  Key key;
  double wireSeconds = 0;
  double decodeSeconds = 0;
  std::uint64_t control = 0;  // control frames that the receiver has received so far
};
std::string toWire(const ReceivedReport& report);
ReceivedReport receivedFromWire(std::span<const std::byte> metadata);
ReceivedReport reportFrom(const wire::Received& proto);

void toWire(const Roster& roster, wire::CohortPlan& proto);
// Throws ProtocolError unless it has as many members as the cohort, and possible attendances.
// JointPlan checks that they have samples.
Roster rosterFromWire(const wire::CohortPlan& proto, const Cohort& cohort);

void toWire(const Arrived& arrived, wire::Arrived& proto);
Arrived arrivedFromWire(const wire::Arrived& proto);

}  // namespace cleave
