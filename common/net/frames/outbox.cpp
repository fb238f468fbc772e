#include "common/net/frames/outbox.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "proto/wire.pb.h"

namespace cleave {
namespace {

std::string segmentMetadata(std::uint64_t offset, const std::string& sha256) {
  wire::Segment segment;
  segment.set_offset(offset);
  segment.set_sha256(sha256);
  return segment.SerializeAsString();
}

// Of the whole stream, in bytes.
std::uint64_t lengthOf(const OutgoingTensor& tensor) {
  return tensor.repeated > 0 ? tensor.repeated : tensor.bytes.size();
}

}  // namespace

void Outbox::pushControl(FrameKind kind, std::string metadata) {
  OutgoingFrame frame;
  frame.kind = kind;
  frame.metadata = std::move(metadata);
  control_.push_back(std::move(frame));
}

void Outbox::pushTensor(OutgoingTensor tensor) {
  assert(tensor.begin <= lengthOf(tensor));
  auto stream = std::make_shared<Stream>();
  stream->tensor = std::move(tensor);
  stream->offset = stream->tensor.begin;
  // Inserted before the first less urgent tensor, even one in progress, which continues afterwards.
  const auto rank = [](const OutgoingTensor& each) {
    return std::pair(each.isBackground, each.priority);
  };
  const auto place = std::upper_bound(
      streams_.begin(), streams_.end(), rank(stream->tensor),
      [&](const auto& mine, const auto& other) { return mine < rank(other->tensor); });
  streams_.insert(place, std::move(stream));
  assert(std::is_sorted(streams_.begin(), streams_.end(), [&](const auto& a, const auto& b) {
    return rank(a->tensor) < rank(b->tensor);
  }));
}

std::optional<OutgoingFrame> Outbox::next(std::size_t segmentBytes, std::size_t backgroundBytes) {
  assert(segmentBytes > 0 && segmentBytes <= kMaxSegmentBytes);
  if (!control_.empty()) {
    OutgoingFrame frame = std::move(control_.front());
    control_.pop_front();
    return frame;
  }
  if (!hasNext(backgroundBytes)) return std::nullopt;

  const std::shared_ptr<Stream> stream = streams_.front();
  const OutgoingTensor& tensor = stream->tensor;
  const bool first = stream->id == 0;
  const bool repeats = tensor.repeated > 0;
  assert(!repeats || tensor.bytes.size() >= kMaxSegmentBytes);
  assert(!tensor.isBackground || backgroundBytes > 0);
  assert(stream->offset <= lengthOf(tensor));
  const std::uint64_t rest = lengthOf(tensor) - stream->offset;
  const std::size_t max =
      tensor.isBackground ? std::min(segmentBytes, backgroundBytes) : segmentBytes;
  const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(rest, max));

  OutgoingFrame frame;
  frame.payload = tensor.bytes.subspan(repeats ? 0 : stream->offset, bytes);
  frame.owner = tensor.owner;
  frame.isBackground = tensor.isBackground;
  if (tensor.segmentWritten) {
    frame.segmentWritten = [segmentWritten = tensor.segmentWritten, end = stream->offset + bytes](
                               SteadyTime chosen, SteadyTime written) {
      segmentWritten(end, chosen, written);
    };
  }
  // The digest is sent in a Segment's metadata, so a stream with a digest always has a second
  // frame, however short it is.
  const bool digestFollows = first && !tensor.sha256.empty();
  const bool last = frame.payload.size() == rest && !digestFollows;
  if (first) {
    stream->id = nextStream_++;
    frame.kind = FrameKind::tensor;
    frame.metadata = tensor.openMetadata(secondsSince(tensor.queuedAt));
  } else {
    frame.kind = FrameKind::segment;
    frame.metadata = segmentMetadata(stream->offset, last ? tensor.sha256 : std::string());
  }
  frame.stream = stream->id;
  stream->offset += frame.payload.size();
  if (tensor.wireBytes) {
    *tensor.wireBytes += kHeaderBytes + frame.metadata.size() + frame.payload.size();
  }
  if (last) {
    streams_.pop_front();
    // Frees the tensor's memory before `written` is called, because that may admit the next tensor.
    frame.written = [stream] {
      const auto written = std::move(stream->tensor.written);
      stream->tensor = {};
      written();
    };
  }
  return frame;
}

}  // namespace cleave
