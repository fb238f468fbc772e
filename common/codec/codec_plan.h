// The codecs of a run. Their specs are parsed once, where they enter: in the configuration, or in a
// run spec. Everything after that refers to the codecs made there.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/codec/codec.h"
#include "common/topology/codec_level.h"
#include "common/topology/flow.h"

namespace cleave {

class DeviceCodec;

// A codec and the spec that it was made from: see parseCodec(). Equal if the specs are.
struct ParsedCodec {
  std::string text = {};  // the spec, as it was given
  std::shared_ptr<const Codec> codec = nullptr;

  const Codec& operator*() const { return *codec; }
  const Codec* operator->() const { return codec.get(); }
  bool operator==(const ParsedCodec& other) const { return text == other.text; }
};
// As JSON, a codec is its spec.
template <typename Json>
void to_json(Json& json,  // NOLINT(readability-identifier-naming): nlohmann-json calls it
             const ParsedCodec& parsed) {
  json = parsed.text;
}

// By the name of the flow, such as "activation/0".
using ParsedCodecs = std::map<std::string, ParsedCodec>;

// How one side encodes and decodes the tensors of a flow.
struct FlowCodec {
  std::shared_ptr<const Codec> own;    // of CodecLevel::own
  std::shared_ptr<const Codec> eight;  // of CodecLevel::eight; null: the flow has no levels
  // GPU implementations of both. They decode tensors into a device's memory and encode tensors that
  // are there; null if the flow's tensors are in host memory.
  std::shared_ptr<const DeviceCodec> ownOnDevice, eightOnDevice;

  bool hasLevels() const { return eight != nullptr; }
  // Payloads of CodecLevel::raw are decoded by the flow's own codec.
  const Codec& at(CodecLevel level) const { return isEight(level) ? *eight : *own; }
  const DeviceCodec* onDeviceAt(CodecLevel level) const {
    return (isEight(level) ? eightOnDevice : ownOnDevice).get();
  }

 private:
  bool isEight(CodecLevel level) const { return level == CodecLevel::eight && hasLevels(); }
};

// The codecs of all flows of a body's place, in the place's order.
using CodecPlan = FlowMap<FlowCodec>;

}  // namespace cleave
