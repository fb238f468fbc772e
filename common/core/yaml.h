// The YAML subset used for configuration: maps with plain keys, lists and scalars, each with its
// location. Anchors, aliases and tags are rejected: their effects are hard to see in a file, and
// aliases can expand without bound.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/core/error.h"

namespace cleave {

struct YamlNode {
  enum class Kind { nothing, scalar, list, map };

  Kind kind = Kind::nothing;
  std::string key;                 // of a map's child
  std::string text;                // of a scalar
  bool quoted = false;             // a quoted or block scalar
  std::string place;               // "configs/a.yaml:12", "--set train.batch=64"
  std::string written;             // of an override: its value as written
  std::vector<YamlNode> children;  // of a map or list, in file order

  // The map's child with that key, or null.
  const YamlNode* child(std::string_view name) const;
  YamlNode* child(std::string_view name);
};

inline constexpr std::size_t kMaxYamlBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxYamlDepth = 16;

// Parses a single document of any kind. Throws UsageError if it is not YAML (with
// name:line:column), is too large or too deep, or has a duplicate key, an anchor, an alias, a tag,
// or a key that is not plain text or contains a dot (dots join keys in paths).
YamlNode parseYaml(std::string_view text, const std::string& name);
// Parses the value of the command-line override `place`; errors and nodes give `place` instead of a
// line.
YamlNode parseYamlValue(std::string_view text, const std::string& place);

// Format text and numbers as YAML scalars that every YAML parser reads as the same value and type.
std::string yamlText(std::string_view text);
std::string yamlNumber(double value);

// A value in single quotes for an error message: at most 60 bytes, no control characters.
std::string quotedForError(std::string_view text);

}  // namespace cleave
