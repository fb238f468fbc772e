// The table of codecs. A new codec is one file in this folder and one row in registry.cpp.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "common/codec/codec.h"
#include "common/codec/spec.h"

namespace cleave {

struct CodecRow {
  std::string_view name;         // "uniform"
  std::string_view parameters;   // "bits=1..16", as shown to users
  std::string_view description;  // one line
  std::string_view example;      // "uniform:bits=8": a valid spec; the contract tests use it
  std::unique_ptr<Codec> (*make)(const CodecSpec& spec);  // throws UsageError
  bool sizeIsFixed = false;  // encode always writes maxEncodedBytes; the spec determines the size
  // The codec keeps values of the flow's earlier tensors. Only codecs that compress its payload may
  // wrap it.
  bool isOfFlow = false;
  // Payloads begin with a format byte, so a tensor can be sent raw (raw.h).
  bool hasRawFormat = true;
};

std::span<const CodecRow> codecTable();

// Throws UsageError with the nearest known name as its hint.
std::unique_ptr<Codec> makeCodec(std::string_view spec);
// Whether this codec always writes exactly maxEncodedBytes.
bool sizeIsFixed(const Codec& codec);
// CodecRow::hasRawFormat of this codec.
bool hasRawFormat(const Codec& codec);

}  // namespace cleave
