// Fuzz target: codecs. The input (see decode_input.h) selects a codec, and is a payload to decode,
// a tensor to encode and decode, or a saved state to restore before that. A codec may refuse a
// payload or a state; any other error is a finding. Every heap buffer has exactly the required
// size, so that AddressSanitizer detects each access beyond its end.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/codec/sample_cache.h"
#include "compression/codecs.h"
#include "tests/fuzz/decode_input.h"
#include "tests/support/codecs/codec_specs.h"

using namespace cleave;
using namespace cleave::fuzz;

namespace {

const Codec& codecOf(std::uint16_t hash) {
  static const auto& codecs = *[] {
    auto* const all = new std::map<std::uint16_t, std::unique_ptr<Codec>>;
    for (const std::string& spec : test::contractSpecs()) {
      std::uint16_t key = hashOf(spec);
      while (!all->try_emplace(key, makeCodec(spec)).second) ++key;
    }
    return all;
  }();
  const auto found = codecs.lower_bound(hash);
  return *(found == codecs.end() ? codecs.begin() : found)->second;
}

// A heap buffer of exactly the given size.
class Room {
 public:
  Room(std::size_t bytes, std::byte fill, bool unaligned)
      : bytes_(bytes), start_(unaligned ? 1 : 0), memory_(new std::byte[bytes + start_]) {
    std::fill_n(memory_.get(), bytes + start_, fill);
  }
  Room(std::span<const std::byte> content, bool unaligned)
      : Room(content.size(), std::byte{0}, unaligned) {
    std::copy(content.begin(), content.end(), data());
  }

  std::byte* data() { return memory_.get() + start_; }
  std::span<std::byte> span() { return {data(), bytes_}; }

 private:
  std::size_t bytes_;
  std::size_t start_;
  std::unique_ptr<std::byte[]> memory_;
};

[[noreturn]] void find(const Codec& codec, const TensorSpec& spec, const char* what) {
  fuzz::find(codec.spec() + ", " + toString(spec) + ": " + what);
}

// A tensor's spec, and the codec and context that encode it.
struct Trip {
  const Codec& codec;
  CodecContext context;
  TensorSpec spec;
  bool unaligned;
};

// Decodes the payload; empty if it is refused. `cut` keeps the codec's changes.
std::optional<Bytes> decodeOver(std::byte fill, const Trip& trip, CutContext& cut,
                                std::span<const std::byte> payload) {
  Room in(payload, trip.unaligned);
  Room out(trip.spec.bytes(), fill, trip.unaligned);
  try {
    trip.codec.decode(trip.context, nullptr, cut, in.span(), {out.data(), trip.spec});
  } catch (const ProtocolError& error) {
    if (error.code() != "bad-payload") find(trip.codec, trip.spec, "refuses with another error");
    return std::nullopt;
  }
  return Bytes(out.span().begin(), out.span().end());
}

// Decodes into two buffers with different contents. Equal results show that every element is
// written.
bool decodes(const Trip& trip, CutContext& cut, std::span<const std::byte> payload) {
  CutContext again = cut;
  const auto first = decodeOver(std::byte{0xa5}, trip, cut, payload);
  const auto second = decodeOver(std::byte{0x5a}, trip, again, payload);
  if (first != second) find(trip.codec, trip.spec, "decodes differently each time");
  return first.has_value();
}

// Fills the tensor by repeating the bytes, and makes NaNs and infinities finite.
void fillFinite(std::span<const std::byte> bytes, const TensorSpec& spec, std::byte* out) {
  for (std::size_t j = 0; j < spec.bytes(); ++j)
    out[j] = bytes.empty() ? std::byte{0} : bytes[j % bytes.size()];
  const auto finite = [&]<typename Word>(Word exponent) {
    for (std::size_t j = 0; j < spec.elements(); ++j) {
      Word word;
      std::memcpy(&word, out + j * sizeof word, sizeof word);
      if ((word & exponent) == exponent)
        word = static_cast<Word>(word ^ (exponent & ~(exponent << 1)));
      std::memcpy(out + j * sizeof word, &word, sizeof word);
    }
  };
  switch (spec.dtype) {
    case DType::f32:
      return finite(std::uint32_t{0x7f800000});
    case DType::f16:
      return finite(std::uint16_t{0x7c00});
    case DType::bf16:
      return finite(std::uint16_t{0x7f80});
    case DType::i64:  // only the codec none accepts it
      return;
  }
}

// Encodes two steps. The first step uses `state`, the second the state of the first; each step
// starts with the original cut contexts.
void encodeAndDecode(const Trip& trip, CutContext& sender, CutContext& receiver,
                     std::span<const std::byte> elements, CodecState state = nullptr) {
  Room tensor(trip.spec.bytes(), std::byte{0}, trip.unaligned);
  fillFinite(elements, trip.spec, tensor.data());
  const CutContext before = sender;
  const CutContext receiverBefore = receiver;
  for (int step = 0; step < 2; ++step) {
    sender = before;
    receiver = receiverBefore;
    Room out(trip.codec.maxEncodedBytes(trip.spec), std::byte{0xa5}, trip.unaligned);
    Encoded encoded;
    try {
      encoded =
          trip.codec.encode(trip.context, state, sender, {tensor.data(), trip.spec}, out.span());
    } catch (const NonFiniteError&) {
      find(trip.codec, trip.spec, "reports finite elements as not finite");
    }
    if (encoded.bytes > out.span().size()) find(trip.codec, trip.spec, "exceeds its bound");
    if (!decodes(trip, receiver, out.span().first(encoded.bytes)))
      find(trip.codec, trip.spec, "refuses its own payload");
    state = encoded.state;
  }
}

// Returns the state; null if the codec refuses it.
CodecState restore(const Trip& trip, std::span<const std::byte> bytes) {
  Room in(bytes, trip.unaligned);
  try {
    if (trip.codec.keepsSamples()) {
      SampleCache cache(kSamples);
      cache.restore(in.span());
      if (!std::ranges::equal(cache.save().span(), bytes)) {
        find(trip.codec, trip.spec, "saves another cache than it restored");
      }
      return nullptr;
    }
    CodecState state = trip.codec.restoreState(in.span());
    if (!std::ranges::equal(trip.codec.saveState(state), bytes)) {
      find(trip.codec, trip.spec, "saves another state than it restored");
    }
    return state;
  } catch (const RunError& error) {
    if (error.code() != "bad-checkpoint") {
      find(trip.codec, trip.spec, "refuses a state with another error");
    }
    return nullptr;
  }
}

void run(const Input& input) {
  const bool unaligned = (input.flags & kUnaligned) != 0;
  const TensorSpec spec = specOf(input);
  const bool encodes = (input.flags & kEncode) != 0;
  CutContext sender;
  CutContext receiver;
  std::span<const std::byte> rest = input.rest;
  if ((input.rank & kRestore) != 0) {
    const std::size_t stateBytes = std::min<std::size_t>(input.activationBytes, rest.size());
    const Trip trip{codecOf(input.codec), {7, keyOf(input)}, spec, unaligned};
    if (CodecState state = restore(trip, rest.first(stateBytes))) {
      encodeAndDecode(trip, sender, receiver, rest.subspan(stateBytes), std::move(state));
    }
    return;
  }
  if ((input.flags & kAfter) != 0) {
    const std::span<const std::byte> first =
        rest.first(std::min<std::size_t>(input.activationBytes, rest.size()));
    rest = rest.subspan(first.size());
    Key key = keyOf(input);
    key.flow = activationAt(0);
    const Trip trip{codecOf(input.activation), {7, key}, spec, unaligned};
    if (encodes) {
      encodeAndDecode(trip, sender, receiver, first);
    } else {
      decodes(trip, receiver, first);
    }
  }
  const Trip trip{codecOf(input.codec), {7, keyOf(input)}, spec, unaligned};
  if (encodes) {
    encodeAndDecode(trip, sender, receiver, rest);
  } else {
    decodes(trip, receiver, rest);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kHeaderBytes || size > kMaxInputBytes) return -1;
  run(read({reinterpret_cast<const std::byte*>(data), size}));
  return 0;
}
