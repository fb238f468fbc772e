// From a node of the configuration to a checked value. Each throws UsageError where the value does
// not fit: place, path, what stands there, what must, and what to write instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/core/yaml.h"

namespace cleave {

// "an integer in 1…65536"; bounds that the type has anyway are left out.
std::string expectedInteger(std::int64_t least, std::int64_t greatest);
std::string expectedNumber(double least, double greatest);

std::int64_t toInteger(const YamlNode& node, const std::string& path, std::int64_t least,
                       std::int64_t greatest);
double toNumber(const YamlNode& node, const std::string& path, double least, double greatest);
bool toBoolean(const YamlNode& node, const std::string& path);
std::string toText(const YamlNode& node, const std::string& path, const std::string& expected);
const std::vector<YamlNode>& toList(const YamlNode& node, const std::string& path,
                                    const std::string& expected);

// "a list", "'abc'": what stands at the node, for a sentence.
std::string describe(const YamlNode& node);
[[noreturn]] void refuse(const YamlNode& node, const std::string& path, const std::string& expected,
                         const std::string& fix);

}  // namespace cleave
