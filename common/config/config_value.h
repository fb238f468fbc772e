// Converts configuration nodes to checked values. Each function throws UsageError for an invalid
// value, with its location, its path, the value found, what is expected and how to fix it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/core/yaml.h"

namespace cleave {

// "an integer in 1…65536". Bounds equal to the type's own limits are omitted.
std::string expectedInteger(std::int64_t min, std::int64_t max);
std::string expectedNumber(double min, double max);

std::int64_t toInteger(const YamlNode& node, const std::string& path, std::int64_t min,
                       std::int64_t max);
// `orElse`: what else the value may be, for the error: ", or imagenet".
double toNumber(const YamlNode& node, const std::string& path, double min, double max,
                const std::string& orElse = "");
bool toBoolean(const YamlNode& node, const std::string& path);
// Returns an override as written, even if YAML parses it as a list or a map, unless it is quoted.
std::string toText(const YamlNode& node, const std::string& path, const std::string& expected);
const std::vector<YamlNode>& toList(const YamlNode& node, const std::string& path,
                                    const std::string& expected);

// The node's content for an error message: "a list", "'abc'".
std::string describe(const YamlNode& node);
[[noreturn]] void refuse(const YamlNode& node, const std::string& path, const std::string& expected,
                         const std::string& hint);

}  // namespace cleave
