// The table of codecs. A new codec is one file in this folder and one row in registry.cpp; its GPU
// implementation, if any, is one file in device/ and a column of that row.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/codec/codec_plan.h"
#include "common/codec/device_codec.h"
#include "common/codec/spec.h"

namespace cleave {

struct CodecRow {
  std::string_view name;         // "uniform"
  std::string_view parameters;   // "bits=1..16", as shown to users
  std::string_view description;  // one line
  std::string_view example;      // "uniform:bits=8": a valid spec; the contract tests use it
  std::unique_ptr<Codec> (*make)(const CodecSpec& spec);  // throws UsageError
  bool sizeIsFixed = false;  // encode always writes maxEncodedBytes; the spec determines the size
  // Payloads begin with a format byte, so a tensor can be sent raw (raw.h).
  bool hasRawFormat = true;
  // Makes the GPU implementation, or returns null if there is none with these parameters. Null: the
  // codec has none.
  std::shared_ptr<const DeviceCodec> (*makeOnGpu)(const GpuCodecRequest& request) = nullptr;
};

std::span<const CodecRow> codecTable();

// The codec of all tensors of integers. It is not in the table: users choose among codecs for
// floats.
std::unique_ptr<Codec> makeIntegerCodec();

// Throws UsageError with the nearest known name as its hint.
std::unique_ptr<Codec> makeCodec(const CodecSpec& spec);
std::unique_ptr<Codec> makeCodec(std::string_view spec);
// Like makeCodec(), for a run.
ParsedCodec parseCodec(const std::string& spec);
// Whether this codec always writes exactly maxEncodedBytes.
bool sizeIsFixed(const Codec& codec);
// CodecRow::hasRawFormat of this codec.
bool hasRawFormat(const Codec& codec);
// Returns the GPU implementation of `codec`. Null if it has none: its tensors pass through host
// memory. Borrows the GPU.
std::shared_ptr<const DeviceCodec> makeDeviceCodec(const std::shared_ptr<const Codec>& codec,
                                                   Gpu& gpu);

}  // namespace cleave
