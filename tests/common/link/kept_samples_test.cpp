// Samples that codecs keep: their caches, their numbers on the wire, and both sides of a link over
// several epochs.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>

#include "common/core/random.h"
#include "common/link/incoming_samples.h"
#include "common/link/tensor_codecs.h"
#include "compression/registry.h"
#include "tests/support/copied.h"
#include "tests/support/error_code.h"
#include "tests/support/files/folder.h"

namespace cleave::test {
namespace {

using Numbers = std::vector<std::uint32_t>;

// ---- The cache ----

TEST_CASE("a restored cache has the rows of the saved one, and anything else is refused") {
  const auto restore = [](const std::vector<std::byte>& bytes, std::uint32_t samples) {
    SampleCache cache(samples);
    cache.restore(bytes);
    return cache;
  };
  SampleCache cache(5);
  CHECK(cache.save().empty());
  cache.replace(4, std::vector<float>{1, 2, 3}, 1);
  cache.replace(1, std::vector<float>{4, 5, 6}, 1);
  const std::vector<std::byte> saved = copied(cache.save());
  const SampleCache restored = restore(saved, 5);
  CHECK(restored.row(0).empty());
  REQUIRE(restored.row(4).size() == 3);
  CHECK(restored.row(4)[2] == 3);
  CHECK(restored.row(1)[0] == 4);

  CHECK((copied(restored.save()) == saved));

  const auto refusal = [&](const std::vector<std::byte>& bytes, std::uint32_t samples) {
    return errorCode([&] { restore(bytes, samples); });
  };
  CHECK(refusal(saved, 4) == "bad-checkpoint");  // of more samples
  CHECK(refusal(saved, 1) == "bad-checkpoint");
  for (std::size_t length = 0; length < saved.size(); ++length) {
    CHECK(refusal({saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(length)}, 5) ==
          "bad-checkpoint");
  }
  for (std::size_t place = 0; place < 16; ++place) {  // sizes
    std::vector<std::byte> damaged = saved;
    damaged[place] = std::byte{0xff};
    CHECK(refusal(damaged, 5) == "bad-checkpoint");
  }
  std::vector<std::byte> repeated = saved;
  std::memcpy(&repeated[16], &repeated[20], 4);
  CHECK(refusal(repeated, 5) == "bad-checkpoint");
  std::vector<std::byte> infinite = saved;
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(&infinite[24], &infinity, sizeof infinity);
  CHECK(refusal(infinite, 5) == "bad-checkpoint");
}

TEST_CASE("a cache of a step, with the rows that changed later, is the later cache") {
  SampleCache cache(4);
  const auto row = [](float x) { return std::vector<float>{x, x}; };
  for (std::uint32_t number = 0; number < 3; ++number) cache.replace(number, row(1), 1 + number);
  const std::vector<std::byte> all = copied(cache.save());
  CHECK(cache.save(3).empty());
  cache.replace(0, row(1), 4);  // the same values: no change
  CHECK(cache.save(3).empty());
  cache.replace(1, row(5), 4);
  cache.replace(3, row(6), 5);
  const std::vector<std::byte> changes = copied(cache.save(3));
  CHECK(changes.size() == 16 + 2 * (4 + 8));  // rows 1 and 3

  SampleCache restored(4);
  restored.restore(all);
  restored.restore(changes);
  CHECK((copied(restored.save()) == copied(cache.save())));
  // The restored rows are those of a checkpoint, so they have not changed since then.
  CHECK(restored.save(5).empty());
  restored.replace(0, row(7), 6);
  CHECK(restored.save(5).size() == 16 + 4 + 8);

  SampleCache other(4);
  other.replace(2, std::vector<float>{1}, 1);
  CHECK(errorCode([&] { restored.restore(other.save().span()); }) ==
        "bad-checkpoint");  // another size
}

TEST_CASE("a cache in a folder is like one in memory, and its file disappears with it") {
  const Folder folder;
  {
    SampleCache inMemory(100), onDisk(100, folder.path.string());
    for (std::uint32_t number = 0; number < 100; number += 3) {
      std::vector<float> row(5000);
      fillNormal(randomKey(number, "kept-samples-test"), row);
      inMemory.replace(number, row, 1 + number);
      onDisk.replace(number, row, 1 + number);
    }
    CHECK((copied(onDisk.save()) == copied(inMemory.save())));
    CHECK((copied(onDisk.save(50)) == copied(inMemory.save(50))));
    SampleCache restored(100, folder.path.string());
    restored.restore(inMemory.save().span());
    CHECK((copied(restored.save()) == copied(inMemory.save())));
    CHECK(std::filesystem::is_empty(folder.path.string()));  // files without names
  }
  SampleCache nowhere(100, folder.path.string() + "/missing");
  CHECK(errorCode([&] { nowhere.replace(0, std::vector<float>(10), 1); }) == "cannot-write");
  CHECK(nowhere.row(0).empty());
}

TEST_CASE("the memory of saved rows outlives the cache") {
  HeldBytes saved;
  std::vector<std::byte> expected;
  {
    SampleCache cache(3);
    cache.replace(1, std::vector<float>{4, 5, 6}, 1);
    saved = cache.save();
    expected = copied(saved);
    cache.replace(1, std::vector<float>{7, 8, 9}, 2);
  }
  CHECK((copied(saved) == expected));
}

// ---- Numbers from a client ----

TEST_CASE("only the numbers of the next batch are accepted, each once and within the data") {
  const auto code = [](IncomingSamples& samples, const SampleNumbers& numbers) {
    return errorCode([&] { samples.received(numbers); });
  };
  IncomingSamples samples(100, 5);
  CHECK(code(samples, {7, 0, {0, 99, 3}}).empty());
  CHECK(code(samples, {7, 3, {1}}).empty());
  CHECK(code(samples, {7, 3, {1}}) == "bad-metadata");     // a repeated part
  CHECK(code(samples, {7, 0, {1}}) == "bad-metadata");     // the beginning again
  CHECK(code(samples, {7, 4, {1, 2}}) == "bad-metadata");  // more than a batch
  CHECK(code(samples, {7, 4, {100}}) == "bad-metadata");   // not a sample
  CHECK(code(samples, {8, 0, {1}}) == "step-gap");         // before the Step
  CHECK(code(samples, {6, 0, {1}}) == "step-gap");
  samples.decided(7);
  CHECK(code(samples, {8, 1, {1}}) == "bad-metadata");  // not the beginning
  IncomingSamples next(100, 5);
  CHECK(code(next, {7, 0, {1}}).empty());
  next.decided(7);
  CHECK(code(next, {8, 0, {1, 1}}).empty());
  CHECK(code(next, {9, 0, {1}}) == "step-gap");
  CHECK(code(next, {7, 0, {1}}) == "step-gap");
  IncomingSamples none(0, 5);
  CHECK(code(none, {1, 0, {0}}) == "unexpected-message");
}

TEST_CASE("numbers of samples survive the wire, and empty ones are refused") {
  const auto read = [](const SampleNumbers& samples) {
    const std::string wire = toWire(samples);
    return sampleNumbersFromWire(std::as_bytes(std::span(wire.data(), wire.size())));
  };
  const SampleNumbers back = read({3, 8192, {5, 0xffffffff, 0}});
  CHECK(back.step == 3);
  CHECK(back.first == 8192);
  CHECK((back.numbers == Numbers{5, 0xffffffff, 0}));
  CHECK(errorCode([&] { read({0, 0, {1}}); }) == "bad-metadata");
  CHECK(errorCode([&] { read({1, 0, {}}); }) == "bad-metadata");
  // The largest frame is within the limit.
  CHECK(toWire({~0ull, ~0u, Numbers(kMaxSampleNumbers, ~0u)}).size() <= kMaxMetadataBytes);
}

// ---- Both sides of a link ----

constexpr std::uint32_t kSamples = 22;
constexpr std::uint32_t kBatch = 9;
constexpr std::uint32_t kMicroBatches = 2;
constexpr std::uint32_t kSteps = 3;  // per epoch; the last batch has 4 samples
constexpr std::size_t kRow = 40;

TensorCodecOptions optionsWith(const std::string& activation, const std::string& folder = "") {
  TensorCodecOptions options;
  options.samplesFolder = folder;
  options.seed = 5;
  options.errorEvery = 2;
  options.microBatches = kMicroBatches;
  options.trainSamples = kSamples;
  for (const Flow flow : Place{}.flows()) {
    options.codecs[flow].own = makeCodec(isGradient(flow) ? "power:rank=2" : activation);
  }
  return options;
}

// The batches of a run over both activations of a link. The client encodes activation/0 and decodes
// activation/1.
class Link : private TrafficObserver {
 public:
  // With a folder, both sides keep samples in files there.
  explicit Link(const std::string& activation, const std::string& folder = "")
      : client_(recording(optionsWith(activation, folder)), std::make_shared<BufferPool>()),
        server_(recording(optionsWith(activation, folder)), std::make_shared<BufferPool>()) {}

  TensorCodecs& client() { return client_; }
  TensorCodecs& server() { return server_; }

  // Runs a step, with its micro-batches in reverse order if `backwards`. Returns all payloads.
  std::vector<std::byte> step(std::uint64_t step, bool backwards = false) {
    const Numbers numbers = samplesOf(step);
    if (earlyStep_ != step) begin(step);
    const std::uint32_t count =
        Division::of(static_cast<std::uint32_t>(numbers.size()), kMicroBatches).count;
    std::vector<std::byte> payloads;
    for (std::uint32_t turn = 0; turn < count; ++turn) {
      const std::uint32_t i = backwards ? count - 1 - turn : turn;
      if (earlyStep_ != step || i > 0) send(step, i, activationAt(0), client_, server_, payloads);
      send(step, i, activationAt(1), server_, client_, payloads);
    }
    return payloads;
  }
  void begin(std::uint64_t step) {
    client_.addSamples(step, samplesOf(step));
    server_.addSamples(step, samplesOf(step));
  }
  // The server decodes the first activation of a step before it has applied the previous one.
  void beginEarly(std::uint64_t step) {
    begin(step);
    std::vector<std::byte> payloads;
    send(step, 0, activationAt(0), client_, server_, payloads);
    earlyStep_ = step;
  }

  Numbers samplesOf(std::uint64_t step) const {
    const std::uint64_t epoch = (step - 1) / kSteps, batch = (step - 1) % kSteps;
    const auto order = randomPermutation(randomKey(1, "kept-samples-test", {epoch}), kSamples);
    const std::size_t first = batch * kBatch;
    const std::size_t end = std::min<std::size_t>(first + kBatch, kSamples);
    Numbers numbers(order.begin() + static_cast<std::ptrdiff_t>(first),
                    order.begin() + static_cast<std::ptrdiff_t>(end));
    if (repeats) numbers.back() = numbers.front();
    return numbers;
  }

  double noise = 0;      // of all tensors so far
  bool repeats = false;  // each batch has its first sample in its first and last micro-batch

 private:
  TensorCodecOptions recording(TensorCodecOptions options) {
    options.observers = {this};
    return options;
  }
  bool wants(const Key&) const override { return true; }
  void crossed(const Key&, const std::string&, CodecLevel, const TensorView& tensor) override {
    recorded_.emplace_back(tensor.data, tensor.data + tensor.spec.bytes());
  }

  void send(std::uint64_t step, std::uint32_t i, Flow flow, TensorCodecs& from, TensorCodecs& to,
            std::vector<std::byte>& payloads) {
    const Numbers numbers = samplesOf(step);
    const Division division =
        Division::of(static_cast<std::uint32_t>(numbers.size()), kMicroBatches);
    const std::uint32_t size = division.size(i), offset = division.offset(i);
    std::vector<float> values(size * kRow), change(kRow);
    for (std::uint32_t row = 0; row < size; ++row) {
      const std::uint32_t number = numbers[offset + row];
      const std::span<float> out(&values[row * kRow], kRow);
      fillNormal(randomKey(number, "kept-samples-test", {flowNumber(flow)}), out);
      fillNormal(randomKey(number, "kept-samples-test", {flowNumber(flow), step}), change);
      for (std::size_t j = 0; j < kRow; ++j) {
        out[j] += change[j] / static_cast<float>(2 << (step / kSteps));
      }
    }
    const TensorSpec spec{DType::f32, {size, static_cast<std::int64_t>(kRow)}};
    const Key key{Phase::train, step, i, flow};
    const auto encoded =
        from.encode(key, {reinterpret_cast<const std::byte*>(values.data()), spec});
    const auto bytes = encoded.bytes.span();
    payloads.insert(payloads.end(), bytes.begin(), bytes.end());
    const auto decoded = to.decode(key, bytes, spec);
    // Both sides record what the receiver has decoded.
    const std::byte* const data = decoded.payload.view().data;
    const std::vector<std::byte> expected(data, data + spec.bytes());
    CHECK((std::exchange(recorded_, {}) == std::vector(2, expected)));
    for (std::size_t j = 0; j < values.size(); ++j) {
      float y = 0;
      std::memcpy(&y, decoded.payload.view().data + j * sizeof y, sizeof y);
      noise += std::pow(double{values[j]} - double{y}, 2);
    }
  }

  std::vector<std::vector<std::byte>> recorded_;
  TensorCodecs client_, server_;
  std::uint64_t earlyStep_ = 0;
};

bool areEqual(const TensorCodecs& one, const TensorCodecs& other) {
  const auto first = one.save(), second = other.save();
  return std::equal(
      first.begin(), first.end(), second.begin(), second.end(), [](const auto& a, const auto& b) {
        return a.flow == b.flow && a.i == b.i && std::ranges::equal(a.bytes.span(), b.bytes.span());
      });
}

void commit(Link& link, std::uint64_t step) {
  link.client().commit(step);
  link.server().commit(step);
}

TEST_CASE("both sides keep the same samples, and noise falls from epoch to epoch") {
  Link link("delta(block:bits=4)");
  std::vector<double> noises;
  for (std::uint64_t step = 1; step <= 6 * kSteps; ++step) {
    link.step(step);
    commit(link, step);
    CHECK(areEqual(link.client(), link.server()));
    if (step % kSteps == 0) noises.push_back(std::exchange(link.noise, 0));
  }
  REQUIRE(link.client().save().size() == 2);  // activation/0 and activation/1
  for (std::size_t epoch = 2; epoch < noises.size(); ++epoch) {
    CHECK(noises[epoch] < 0.5 * noises[epoch - 1]);
  }
}

TEST_CASE("a tensor of the next step may be decoded before a step is applied") {
  Link plain("delta(block:bits=4)"), early("delta(block:bits=4)");
  for (std::uint64_t step = 1; step <= 3 * kSteps; ++step) {
    const auto expected = plain.step(step);
    early.step(step);
    early.client().commit(step);
    early.beginEarly(step + 1);
    early.server().commit(step);
    commit(plain, step);
    CHECK(areEqual(early.server(), plain.server()));
    CHECK(areEqual(early.client(), plain.client()));
  }
}

TEST_CASE("the payloads of a step do not depend on the order of its micro-batches") {
  Link one("delta(block:bits=4)"), other("delta(block:bits=4)");
  one.repeats = other.repeats = true;
  for (std::uint64_t step = 1; step <= 3 * kSteps; ++step) {
    one.step(step);
    other.step(step, true);
    commit(one, step);
    commit(other, step);
    CHECK(areEqual(one.client(), other.client()));
  }
}

TEST_CASE("restored caches give the same payloads as uninterrupted ones") {
  Link whole("rans(delta:skip=0.05(block:bits=4))");
  std::uint64_t step = 1;
  for (; step <= kSteps + 1; ++step) {
    whole.step(step);
    commit(whole, step);
  }
  const Folder folder;
  Link resumed("rans(delta:skip=0.05(block:bits=4))", folder.path.string()),
      fresh("rans(delta:skip=0.05(block:bits=4))");
  resumed.client().restore(whole.client().save());
  resumed.server().restore(whole.server().save());
  for (; step <= 3 * kSteps; ++step) {
    const auto expected = whole.step(step);
    CHECK((resumed.step(step) == expected));
    CHECK((fresh.step(step) != expected));
    for (Link* each : {&whole, &resumed, &fresh}) commit(*each, step);
  }
  CHECK(areEqual(whole.server(), resumed.server()));

  auto damaged = whole.server().save();
  damaged.front().bytes = damaged.front().bytes.part(damaged.front().bytes.span().first(40));
  CHECK(errorCode([&] { resumed.server().restore(damaged); }) == "bad-checkpoint");
  CHECK(areEqual(whole.server(), resumed.server()));
}

TEST_CASE("rows since a step, added to the states of that step, give the same payloads") {
  Link whole("delta(block:bits=4)");
  std::uint64_t step = 1, since = 0;
  std::vector<TensorCodecs::SavedState> client, server;
  std::vector<std::size_t> sizes;
  for (const std::uint64_t last : {4, 5, 8}) {  // the steps that are saved
    for (; step <= last; ++step) {
      whole.step(step);
      commit(whole, step);
    }
    for (auto& each : whole.client().save(since)) client.push_back(std::move(each));
    for (auto& each : whole.server().save(since)) server.push_back(std::move(each));
    sizes.push_back(client.back().bytes.size());
    since = last;
  }
  CHECK(sizes[0] > kSamples * kRow * sizeof(float));
  CHECK(sizes[1] < (kBatch + 1) * kRow * sizeof(float));

  Link resumed("delta(block:bits=4)");
  resumed.client().restore(client);
  resumed.server().restore(server);
  CHECK(areEqual(whole.client(), resumed.client()));
  for (; step <= 3 * kSteps; ++step) {
    const auto expected = whole.step(step);
    CHECK((resumed.step(step) == expected));
    for (Link* each : {&whole, &resumed}) commit(*each, step);
  }
}

TEST_CASE("a tensor whose samples are unknown is refused") {
  TensorCodecs codecs(optionsWith("delta(block:bits=4)"), std::make_shared<BufferPool>());
  std::vector<float> values(5 * kRow, 1.0f);
  const auto code = [&](std::uint64_t step, std::uint32_t i, std::int64_t size) {
    const TensorSpec spec{DType::f32, {size, static_cast<std::int64_t>(kRow)}};
    return errorCode([&] {
      codecs.encode({Phase::train, step, i, activationAt(0)},
                    {reinterpret_cast<const std::byte*>(values.data()), spec});
    });
  };
  CHECK(code(1, 0, 5) == "bad-key");
  codecs.addSamples(1, Numbers{1, 2, 3, 4});
  codecs.addSamples(1, Numbers{5, 6, 7, 8, 9});
  CHECK(code(1, 0, 5).empty());
  CHECK(code(1, 1, 5) == "bad-key");  // has 4 samples
  CHECK(code(1, 1, 4).empty());
  CHECK(code(1, 2, 4) == "bad-key");
  CHECK(code(2, 0, 5) == "bad-key");
  codecs.commit(1);
  CHECK(code(1, 0, 5) == "bad-key");
}

}  // namespace
}  // namespace cleave::test
