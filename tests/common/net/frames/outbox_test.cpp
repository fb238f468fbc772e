// The outbox: order, segments, digests, and byte counts.
#include "common/net/frames/outbox.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/core/clock.h"
#include "proto/wire.pb.h"

using namespace cleave;

namespace {

constexpr std::size_t kSegment = 10;

struct Tensor {
  std::string name;
  std::size_t bytes = 0;
  int priority = 0;
  std::string sha256 = {};
  bool isBackground = false;
};

// Takes frames from an outbox and abbreviates them: "a0+10" means 10 bytes of tensor a, starting at
// byte 0.
class Writer {
 public:
  void push(const Tensor& description) {
    auto bytes = std::make_shared<std::vector<std::byte>>(description.bytes);
    OutgoingTensor tensor;
    tensor.bytes = *bytes;
    tensor.owner = bytes;
    tensor.priority = description.priority;
    tensor.queuedAt = now();
    tensor.sha256 = description.sha256;
    tensor.isBackground = description.isBackground;
    tensor.openMetadata = [this, name = description.name, bytes](double queueSeconds) {
      CHECK(queueSeconds >= 0);
      starts_.push_back({bytes->data(), name});
      return "metadata of " + name;
    };
    tensor.wireBytes = std::make_shared<std::uint64_t>(0);
    tensor.written = [this, name = description.name, wireBytes = tensor.wireBytes] {
      wireBytes_.push_back(name + "=" + std::to_string(*wireBytes));
    };
    outbox.pushTensor(std::move(tensor));
  }

  // The next frame, abbreviated; empty if there is none.
  std::string write() {
    const auto frame = outbox.next(kSegment, background);
    if (!frame) return {};
    written.push_back(*frame);
    if (frame->written) frame->written();
    if (!isTensorData(frame->kind))
      return std::string(frameKindName(frame->kind)) + " " + frame->metadata;
    if (names_.size() < frame->stream) names_.push_back(starts_.back().second);
    wire::Segment segment;
    if (frame->kind == FrameKind::segment) REQUIRE(segment.ParseFromString(frame->metadata));
    return names_.at(frame->stream - 1) + std::to_string(segment.offset()) + "+" +
           std::to_string(frame->payload.size()) +
           (segment.sha256().empty() ? "" : " " + segment.sha256());
  }

  std::vector<std::string> writeAll() {
    std::vector<std::string> all;
    for (std::string frame = write(); !frame.empty(); frame = write()) all.push_back(frame);
    return all;
  }

  const std::vector<std::string>& wireBytes() const { return wireBytes_; }

  Outbox outbox;
  std::size_t background = kSegment;  // current maximum size of a background segment
  std::vector<OutgoingFrame> written;

 private:
  std::vector<std::pair<const std::byte*, std::string>> starts_;
  std::vector<std::string> names_;  // names by stream number
  std::vector<std::string> wireBytes_;
};

using Frames = std::vector<std::string>;

}  // namespace

TEST_CASE("an empty outbox has nothing to write") {
  Writer writer;
  CHECK(writer.outbox.empty());
  CHECK(writer.writeAll().empty());
}

TEST_CASE("control frames are sent first, in order") {
  Writer writer;
  writer.push({"a", 4});
  writer.outbox.pushControl(FrameKind::received, "1");
  writer.outbox.pushControl(FrameKind::step, "2");
  CHECK(writer.outbox.size() == 3);
  CHECK(writer.writeAll() == Frames{"Received 1", "Step 2", "a0+4"});
  CHECK(writer.outbox.empty());
}

TEST_CASE("control frames are sent between a tensor's segments") {
  Writer writer;
  writer.push({"a", 20});
  CHECK(writer.write() == "a0+10");
  writer.outbox.pushControl(FrameKind::pong, "");
  CHECK(writer.writeAll() == Frames{"Pong ", "a10+10"});
}

TEST_CASE("a background tensor is sent last, and only within its window") {
  Writer writer;
  writer.background = 0;
  writer.push({"b", 10, 0, {}, true});
  CHECK_FALSE(writer.outbox.hasNext(0));
  CHECK(writer.outbox.hasNext(1));
  CHECK(writer.writeAll().empty());
  CHECK_FALSE(writer.outbox.empty());
  writer.background = 4;
  CHECK(writer.write() == "b0+4");
  writer.push({"a", 20, 7});
  CHECK(writer.writeAll() == Frames{"a0+10", "a10+10", "b4+4", "b8+2"});
}

TEST_CASE("tensors are sent by priority, and in order of arrival within a priority") {
  Writer writer;
  writer.push({"late", 1, 5});
  writer.push({"first", 1, 1});
  writer.push({"second", 1, 1});
  CHECK(writer.writeAll() == Frames{"first0+1", "second0+1", "late0+1"});
}

TEST_CASE("an urgent tensor overtakes one that is being sent, which then continues") {
  Writer writer;
  writer.push({"big", 30, 2});
  CHECK(writer.write() == "big0+10");
  writer.push({"urgent", 15, 1});
  writer.push({"equal", 5, 2});
  CHECK(writer.writeAll() ==
        Frames{"urgent0+10", "urgent10+5", "big10+10", "big20+10", "equal0+5"});
}

TEST_CASE("streams are numbered in the order in which they open") {
  Writer writer;
  writer.push({"late", 1, 5});
  writer.push({"early", 1, 1});
  writer.writeAll();
  CHECK(writer.written.at(0).stream == 1);
  CHECK(writer.written.at(1).stream == 2);
  CHECK(writer.written.at(0).metadata == "metadata of early");
}

TEST_CASE("an empty tensor is one frame") {
  Writer writer;
  writer.push({"a", 0});
  CHECK(writer.writeAll() == Frames{"a0+0"});
  CHECK(writer.wireBytes().size() == 1);
}

TEST_CASE("a tensor that ends at a segment's end has no empty last frame") {
  Writer writer;
  writer.push({"a", 2 * kSegment});
  CHECK(writer.writeAll() == Frames{"a0+10", "a10+10"});
}

TEST_CASE("a digest is sent with the last segment") {
  Writer writer;
  writer.push({"a", 25, 0, "digest"});
  CHECK(writer.writeAll() == Frames{"a0+10", "a10+10", "a20+5 digest"});
}

TEST_CASE("a digest is sent in a second frame if the first frame holds all bytes") {
  Writer writer;
  writer.push({"full", kSegment, 0, "digest"});
  writer.push({"empty", 0, 0, "digest"});
  CHECK(writer.writeAll() == Frames{"full0+10", "full10+0 digest", "empty0+0", "empty0+0 digest"});
}

TEST_CASE("`written` is reported once, with the bytes of all frames of the stream") {
  Writer writer;
  writer.push({"a", 25, 0, "digest"});
  std::size_t bytes = 0;
  while (!writer.outbox.empty()) {
    CHECK(writer.wireBytes().empty());
    writer.write();
    const OutgoingFrame& frame = writer.written.back();
    bytes += kHeaderBytes + frame.metadata.size() + frame.payload.size();
  }
  CHECK(writer.wireBytes() == Frames{"a=" + std::to_string(bytes)});
}

TEST_CASE("the tensor's memory is kept until its last frame is destroyed") {
  Outbox outbox;
  auto bytes = std::make_shared<std::vector<std::byte>>(kSegment + 1);
  const std::weak_ptr<void> alive = bytes;
  OutgoingTensor tensor;
  tensor.bytes = *bytes;
  tensor.owner = std::move(bytes);
  tensor.openMetadata = [](double) { return std::string(); };
  tensor.written = [] {};
  outbox.pushTensor(std::move(tensor));
  outbox.next(kSegment, kSegment);
  CHECK(!alive.expired());
  auto last = outbox.next(kSegment, kSegment);
  CHECK(!alive.expired());
  last.reset();
  CHECK(alive.expired());
}

TEST_CASE("a stream can repeat one block up to any length") {
  const std::vector<std::byte> block(kMaxSegmentBytes);
  Outbox outbox;
  OutgoingTensor tensor;
  tensor.bytes = block;
  tensor.repeated = 2 * kMaxSegmentBytes + 3;
  tensor.openMetadata = [](double) { return std::string("open"); };
  std::uint64_t wireBytes = 0;
  tensor.wireBytes = std::make_shared<std::uint64_t>(0);
  tensor.written = [&, bytes = tensor.wireBytes] { wireBytes = *bytes; };
  outbox.pushTensor(std::move(tensor));
  std::vector<std::size_t> sizes;
  while (const auto frame = outbox.next(kMaxSegmentBytes, kMaxSegmentBytes)) {
    CHECK(frame->payload.data() == block.data());
    if (frame->kind == FrameKind::segment) {
      wire::Segment segment;
      REQUIRE(segment.ParseFromString(frame->metadata));
      CHECK(segment.offset() == sizes.size() * kMaxSegmentBytes);
    }
    sizes.push_back(frame->payload.size());
    if (frame->written) frame->written();
  }
  CHECK(sizes == std::vector<std::size_t>{kMaxSegmentBytes, kMaxSegmentBytes, 3});
  CHECK(wireBytes > 2 * kMaxSegmentBytes + 3 * kHeaderBytes);
}

TEST_CASE("queueing time is measured from queuedAt to the first frame") {
  Outbox outbox;
  OutgoingTensor tensor;
  tensor.queuedAt = now() - std::chrono::seconds(5);
  double seconds = 0;
  tensor.openMetadata = [&](double queueSeconds) {
    seconds = queueSeconds;
    return std::string();
  };
  tensor.written = [] {};
  outbox.pushTensor(std::move(tensor));
  outbox.next(kSegment, kSegment);
  CHECK(seconds >= 5);
}

TEST_CASE("a tensor whose beginning the peer already has is continued after that beginning") {
  Outbox outbox;
  const std::vector<std::byte> bytes(25);
  const auto push = [&](std::uint64_t begin, const std::string& sha256) {
    OutgoingTensor tensor;
    tensor.bytes = bytes;
    tensor.begin = begin;
    tensor.sha256 = sha256;
    tensor.openMetadata = [](double) { return std::string("opened"); };
    tensor.written = [] {};
    outbox.pushTensor(std::move(tensor));
  };
  push(8, "");
  auto frame = outbox.next(kSegment, kSegment);
  REQUIRE(frame);
  CHECK(frame->kind == FrameKind::tensor);
  CHECK(frame->payload.data() == bytes.data() + 8);
  CHECK(frame->payload.size() == kSegment);
  frame = outbox.next(kSegment, kSegment);
  REQUIRE(frame);
  CHECK(frame->kind == FrameKind::segment);
  CHECK(frame->payload.data() == bytes.data() + 18);
  CHECK(frame->payload.size() == 7);
  frame->written();

  // Only the digest is missing.
  push(25, "digest");
  frame = outbox.next(kSegment, kSegment);
  REQUIRE(frame);
  CHECK(frame->kind == FrameKind::tensor);
  CHECK(frame->payload.empty());
  frame = outbox.next(kSegment, kSegment);
  REQUIRE(frame);
  CHECK(frame->payload.empty());
  wire::Segment segment;
  REQUIRE(segment.ParseFromString(frame->metadata));
  CHECK(segment.offset() == 25);
  CHECK(segment.sha256() == "digest");
  CHECK(outbox.empty());
}
