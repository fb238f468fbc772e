// The YAML that configuration uses: maps with plain keys, lists and scalars, each with the place
// where it stands. Without anchors, aliases and tags, whose effects are hard to see in a file and
// can grow without bound.
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
  bool quoted = false;             // a scalar in quotes, or a block of text
  std::string place;               // "configs/a.yaml:12", "--set train.batch=64"
  std::vector<YamlNode> children;  // of a map or list, in file order

  // The map's child of that key, or null.
  const YamlNode* child(std::string_view name) const;
  YamlNode* child(std::string_view name);
};

inline constexpr std::size_t kMaxYamlBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxYamlDepth = 16;

// The one document in `text`, of any kind. Throws UsageError: not YAML (name:line:column), too big
// or too deep, a duplicate key, a key that is not plain text or holds a dot (dots join keys in
// paths), an anchor, an alias, a tag.
YamlNode parseYaml(std::string_view text, const std::string& name);
// The value of the command line override `place`; errors and nodes name it instead of lines.
YamlNode parseYamlValue(std::string_view text, const std::string& place);

// Text and numbers as YAML scalars that read back to the same value and type, by any YAML reader.
std::string yamlText(std::string_view text);
std::string yamlNumber(double value);

// A value in single quotes for an error's sentence: at most 60 bytes, no control characters.
std::string quotedForError(std::string_view text);

}  // namespace cleave
