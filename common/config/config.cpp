#include "common/config/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "common/config/config_value.h"
#include "common/config/key_suggestion.h"
#include "common/core/names.h"
#include "common/core/yaml.h"

namespace cleave {
namespace {

using Kind = YamlNode::Kind;

constexpr const char* kOverridePlace = "--set ";

std::vector<std::string> splitPath(std::string_view path) {
  std::vector<std::string> keys;
  for (std::size_t begin = 0;;) {
    const std::size_t dot = path.find('.', begin);
    keys.emplace_back(path.substr(begin, dot - begin));
    if (dot == std::string_view::npos) return keys;
    begin = dot + 1;
  }
}

std::string joinPath(const std::string& parent, const std::string& key) {
  return parent.empty() ? key : parent + "." + key;
}

std::string lastKey(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::string readFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxYamlBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    throw UsageError("config-file", path + ": cannot be read: " + std::strerror(errno),
                     "check the path and its permissions");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// Text that is not valid YAML, such as [::1]:4800, becomes a quoted scalar, unless it looks like an
// unfinished list, map or quote.
YamlNode parseOverride(const std::string& written, const std::string& place) {
  YamlNode node;
  try {
    node = parseYamlValue(written, place);
  } catch (const UsageError&) {
    const std::size_t first = std::min(written.find_first_not_of(' '), written.size() - 1);
    const bool isList = written[first] == '[' && written.find(']') == std::string::npos;
    if (isList || std::string_view("{\"'").find(written[first]) != std::string_view::npos) throw;
    node.kind = Kind::scalar;
    node.quoted = true;
    node.text = written;
  }
  node.place = place;
  node.written = written;
  return node;
}

// Sets the override's value in the tree.
void applyOverride(YamlNode& root, const std::string& override) {
  const std::string place = kOverridePlace + override;
  const std::size_t equals = override.find('=');
  const std::vector<std::string> keys = splitPath(override.substr(0, equals));
  if (equals == std::string::npos || std::count(keys.begin(), keys.end(), "") > 0 ||
      keys.size() > kMaxYamlDepth) {
    throw UsageError("config-override", place + " is not KEY=VALUE",
                     "write the key's path, '=' and the value, such as --set train.batch=64");
  }
  YamlNode* node = &root;
  for (const std::string& key : keys) {
    if (node->kind == Kind::nothing) node->kind = Kind::map;
    if (node->kind != Kind::map) {
      throw UsageError("config-override",
                       place + ": " + node->key + " is " + describe(*node) + " (" + node->place +
                           "), so it cannot contain keys",
                       "override the whole of " + node->key + ", or correct the path");
    }
    YamlNode* child = node->child(key);
    if (child == nullptr) {
      child = &node->children.emplace_back();
      child->key = key;
      child->place = place;
    }
    node = child;
  }
  const std::string key = node->key;
  *node = parseOverride(override.substr(equals + 1), place);
  node->key = key;
}

std::string itemPath(const std::string& path, std::size_t i) {
  return path + "[" + std::to_string(i) + "]";
}

// "insert.rank" for "insert[0].rank".
std::string withoutIndexes(const std::string& path) {
  std::string plain;
  bool isInside = false;
  for (const char c : path) {
    isInside = isInside || c == '[';
    if (!isInside) plain += c;
    isInside = isInside && c != ']';
  }
  return plain;
}

std::string listOf(const std::vector<std::string>& items) {
  std::string list;
  for (const std::string& item : items) list += (list.empty() ? "" : ", ") + item;
  return list;
}

std::string yamlList(const std::vector<std::string>& items) {
  std::string list = "[";
  list += listOf(items);
  return list + "]";
}

// Whether the second key could be a misspelt form of the first one, judged by the names above them:
// "model.file" is never spelt "data.test.file". A key without a name above it may be misplaced.
bool hasSimilarSection(const std::string& path, const std::string& other) {
  const auto sectionOf = [](const std::string& key) { return key.substr(0, key.rfind('.')); };
  if (path.find('.') == std::string::npos || other.find('.') == std::string::npos) return true;
  return !nearestName(lastKey(sectionOf(path)), {lastKey(sectionOf(other))}).empty();
}

// "train.optimizer" of "train.optimizer.name": many of these have a short form of their own.
std::vector<std::string> parentsOf(const std::vector<std::string>& keys) {
  std::set<std::string> parents;
  for (const std::string& key : keys) {
    for (std::size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1)) {
      parents.insert(key.substr(0, dot));
    }
  }
  return {parents.begin(), parents.end()};
}

// The keys that begin like `path`, or if there are none, the first parts of all keys.
std::string nearbyKeys(const std::string& path, const std::vector<std::string>& known) {
  const auto firstPart = [](const std::string& key) { return key.substr(0, key.find('.')); };
  std::set<std::string> nearby, first;
  for (const std::string& key : known) {
    first.insert(firstPart(key));
    if (firstPart(key) == firstPart(path)) nearby.insert(key);
  }
  const auto listed = [](const std::set<std::string>& keys) {
    return listOf(std::vector<std::string>(keys.begin(), keys.end()));
  };
  return nearby.empty() ? "the known keys begin with " + listed(first)
                        : "the known keys in " + firstPart(path) + " are " + listed(nearby);
}

// The beginning of a Markdown text up to the first full stop or semicolon, without marks.
std::string firstSentence(std::string_view text) {
  text = text.substr(0, std::min(text.find(". "), text.find(';')));
  std::string plain;
  for (const char c : text) plain += c == '`' ? std::string() : std::string(1, c);
  return plain;
}

using PathAndNode = std::pair<std::string, const YamlNode*>;

// Collects nodes without further keys: values, empty maps, and keys without a value. `mapLists`:
// the paths of lists whose items are maps.
void collectLeaves(const YamlNode& node, const std::string& path,
                   const std::set<std::string>& mapLists, std::vector<PathAndNode>& leaves) {
  for (const YamlNode& child : node.children) {
    const std::string childPath = joinPath(path, child.key);
    if (child.kind == Kind::map && !child.children.empty()) {
      collectLeaves(child, childPath, mapLists, leaves);
    } else if (mapLists.contains(childPath)) {
      for (std::size_t i = 0; i < child.children.size(); ++i) {
        collectLeaves(child.children[i], itemPath(childPath, i), mapLists, leaves);
      }
    } else {
      leaves.emplace_back(childPath, &child);
    }
  }
}

using PathAndYaml = std::pair<std::string, std::string>;

void appendGroup(const std::vector<PathAndYaml>& values, const std::string& prefix,
                 const std::string& indent, const std::set<std::string>& mapLists,
                 std::string& yaml);

// Appends the items of a list of maps.
void appendItems(const std::vector<PathAndYaml>& values, const std::string& list,
                 const std::string& indent, const std::set<std::string>& mapLists,
                 std::string& yaml) {
  for (std::size_t i = 0;; ++i) {
    std::string item;
    appendGroup(values, itemPath(list, i) + ".", indent + "    ", mapLists, item);
    if (item.empty()) return;
    yaml += indent + "  - " + item.substr(indent.size() + 4);
  }
}

void appendGroup(const std::vector<PathAndYaml>& values, const std::string& prefix,
                 const std::string& indent, const std::set<std::string>& mapLists,
                 std::string& yaml) {
  std::set<std::string> written;
  for (const auto& [path, value] : values) {
    if (!path.starts_with(prefix)) continue;
    const std::size_t dot = path.find('.', prefix.size());
    std::string key = path.substr(prefix.size(), dot - prefix.size());
    const std::string list = key.substr(0, key.find('['));
    const bool isItem = list != key && mapLists.contains(prefix + list);
    if (isItem) key = list;
    if (!written.insert(key).second) continue;
    yaml += indent + yamlText(key) + ":";
    if (isItem) {
      yaml += "\n";
      appendItems(values, prefix + list, indent, mapLists, yaml);
    } else if (dot == std::string::npos) {
      yaml += " " + value + "\n";
    } else {
      yaml += "\n";
      appendGroup(values, prefix + key + ".", indent + "  ", mapLists, yaml);
    }
  }
}

[[noreturn]] void refuseItem(const YamlNode& node, const std::string& path) {
  refuse(node, path, "a map of keys", "write it as {KEY: VALUE, …}");
}

}  // namespace

struct Config::State {
  std::string name;
  YamlNode root;
  std::vector<PathAndYaml> values;  // read so far, in the order of reading
  std::set<std::string> sections;   // paths passed to keys() and isMap()
  std::vector<std::string> asked;   // paths passed to has(): optional keys
  std::set<std::string> mapLists;   // paths passed to items()

  // Null if `path` does not exist.
  const YamlNode* find(const std::string& path) const {
    const YamlNode* node = &root;
    if (path.empty()) return node;
    std::string above;
    for (const std::string& key : splitPath(path)) {
      const YamlNode* const parent = node;
      node = parent->child(key);
      if (node == nullptr) node = findItem(*parent, above, key);
      if (node == nullptr) return nullptr;
      above = joinPath(above, key);
    }
    return node;
  }

  // The item "key[i]" of a list of maps in `parent`, which is at the path `above`; null if there is
  // none.
  const YamlNode* findItem(const YamlNode& parent, const std::string& above,
                           const std::string& key) const {
    const std::size_t open = key.find('[');
    const std::string listKey = key.substr(0, open);
    if (open == std::string::npos || !mapLists.contains(joinPath(above, listKey))) return nullptr;
    const YamlNode* const list = parent.child(listKey);
    for (std::size_t i = 0; list != nullptr && i < list->children.size(); ++i) {
      if (itemPath(listKey, i) == key) return &list->children[i];
    }
    return nullptr;
  }

  // The node to read `path` from, or null if its default applies.
  const YamlNode* findValue(const std::string& path, const std::string& expected,
                            bool hasDefault) const {
    refuseValueAbove(path);
    const YamlNode* node = find(path);
    if (node == nullptr && !hasDefault) refuseMissing(path, expected);
    return node;
  }

  // If a value replaced a map, the defaults of the map's keys would silently hide it.
  void refuseValueAbove(const std::string& path) const {
    for (std::size_t dot = path.find('.'); dot != std::string::npos;
         dot = path.find('.', dot + 1)) {
      const std::string above = path.substr(0, dot);
      const YamlNode* node = find(above);
      if (node == nullptr) return;
      if (node->kind == Kind::scalar || node->kind == Kind::list) {
        const bool isOverride = node->place.starts_with(kOverridePlace);
        refuse(*node, above, "a map of keys",
               isOverride ? "set one of its keys: --set " + above + ".KEY=VALUE"
                          : "write the keys below " + above + ":, indented");
      }
    }
  }

  [[noreturn]] void refuseMissing(const std::string& path, const std::string& expected) const {
    std::vector<std::string> unread;
    for (const auto& [leaf, node] : leaves()) {
      if (!isKnown(leaf) && hasSimilarSection(path, leaf)) unread.push_back(leaf);
    }
    const std::string misspelt = nearestKey(path, unread);
    throw UsageError("config-missing", name + ": " + path + " is missing",
                     misspelt.empty()
                         ? "add " + path + " (" + expected + "), or pass --set " + path + "=VALUE"
                         : "rename " + misspelt + " (" + find(misspelt)->place + ") to " + path +
                               " if that is what you mean, or add " + path + " (" + expected + ")")
        .about(path, name);
  }

  std::vector<PathAndNode> leaves() const {
    std::vector<PathAndNode> all;
    collectLeaves(root, "", mapLists, all);
    return all;
  }

  bool isKnown(const std::string& path) const {
    return std::any_of(values.begin(), values.end(),
                       [&](const PathAndYaml& value) { return value.first == path; });
  }

  bool isKnownSection(const std::string& path) const {
    const auto isWithin = [within = path + "."](const std::string& other) {
      return other.starts_with(within);
    };
    return sections.contains(path) || std::any_of(sections.begin(), sections.end(), isWithin) ||
           std::any_of(values.begin(), values.end(),
                       [&](const PathAndYaml& value) { return isWithin(value.first); });
  }

  void remember(const std::string& path, std::string yaml) {
    const auto known = std::find_if(values.begin(), values.end(),
                                    [&](const PathAndYaml& value) { return value.first == path; });
    if (known != values.end()) {
      known->second = std::move(yaml);
    } else {
      values.emplace_back(path, std::move(yaml));
    }
  }
};

Config Config::load(const std::string& path, const std::vector<std::string>& overrides) {
  return parse(readFile(path), path, overrides);
}

Config Config::parse(std::string_view text, const std::string& name,
                     const std::vector<std::string>& overrides) {
  auto state = std::make_unique<State>();
  state->name = name;
  state->root = parseYaml(text, name);
  if (state->root.kind == Kind::scalar || state->root.kind == Kind::list) {
    throw UsageError("config-syntax",
                     state->root.place + ": the file is " + describe(state->root) +
                         ", but must be a map of keys",
                     "begin with 'key: value' lines");
  }
  for (const std::string& override : overrides) applyOverride(state->root, override);
  return Config(std::move(state));
}

Config::Config(std::unique_ptr<State> state) : state_(std::move(state)) {}
Config::Config(Config&&) noexcept = default;
Config& Config::operator=(Config&&) noexcept = default;
Config::~Config() = default;

void Config::expand(const std::string& path, const std::string& key) {
  YamlNode* node = &state_->root;
  for (const std::string& part : splitPath(path)) {
    node = node->child(part);
    if (node == nullptr) return;
  }
  if (node->kind != Kind::scalar) return;
  YamlNode value = *node;
  value.key = key;
  node->kind = Kind::map;
  node->text.clear();
  node->children = {std::move(value)};
}

std::size_t Config::items(const std::string& path) {
  state_->mapLists.insert(path);
  YamlNode* node = &state_->root;
  for (const std::string& part : splitPath(path)) node = node == nullptr ? node : node->child(part);
  const bool isMissing = node == nullptr || node->kind == Kind::nothing;
  if (isMissing || node->children.empty()) {
    if (!isMissing && node->kind == Kind::scalar) refuseItem(*node, path);
    state_->remember(path, "[]");
    return 0;
  }
  if (node->kind == Kind::map) {
    YamlNode item = *node;
    item.key.clear();
    node->kind = Kind::list;
    node->children = {std::move(item)};
  }
  for (std::size_t i = 0; i < node->children.size(); ++i) {
    const YamlNode& item = node->children[i];
    if (item.kind != Kind::map || item.children.empty()) refuseItem(item, itemPath(path, i));
  }
  return node->children.size();
}

std::int64_t Config::integer(const std::string& path, std::int64_t min, std::int64_t max,
                             std::optional<std::int64_t> defaultValue) {
  const YamlNode* node =
      state_->findValue(path, expectedInteger(min, max), defaultValue.has_value());
  const std::int64_t value = node ? toInteger(*node, path, min, max) : *defaultValue;
  state_->remember(path, std::to_string(value));
  return value;
}

double Config::number(const std::string& path, double min, double max,
                      std::optional<double> defaultValue) {
  const YamlNode* node =
      state_->findValue(path, expectedNumber(min, max), defaultValue.has_value());
  const double value = node ? toNumber(*node, path, min, max) : *defaultValue;
  state_->remember(path, yamlNumber(value));
  return value;
}

bool Config::boolean(const std::string& path, std::optional<bool> defaultValue) {
  const YamlNode* node = state_->findValue(path, "true or false", defaultValue.has_value());
  const bool value = node ? toBoolean(*node, path) : *defaultValue;
  state_->remember(path, value ? "true" : "false");
  return value;
}

std::string Config::text(const std::string& path, std::optional<std::string> defaultValue,
                         const std::vector<std::string>& choices) {
  const std::string expected = choices.empty() ? "text" : "one of " + listOf(choices);
  const YamlNode* node = state_->findValue(path, expected, defaultValue.has_value());
  const std::string value = node ? toText(*node, path, expected) : *defaultValue;
  if (node && !choices.empty() && std::count(choices.begin(), choices.end(), value) == 0) {
    const std::string meant = nearestName(value, choices);
    refuse(*node, path, meant.empty() ? expected : expected + "; did you mean " + meant + "?",
           "set " + path + " to " + (meant.empty() ? expected : meant));
  }
  // Keeps a value without quotes if it was written without them, such as a model's width of 32.
  const bool isPlain = node && !node->quoted && node->text == value;
  state_->remember(path, isPlain ? value : yamlText(value));
  return value;
}

std::vector<std::int64_t> Config::integers(const std::string& path, std::int64_t min,
                                           std::int64_t max,
                                           std::optional<std::vector<std::int64_t>> defaultValue) {
  const std::string expected = "a list, each item " + expectedInteger(min, max);
  const YamlNode* node = state_->findValue(path, expected, defaultValue.has_value());
  std::vector<std::int64_t> values;
  if (node == nullptr) {
    values = std::move(*defaultValue);
  } else {
    for (const YamlNode& item : toList(*node, path, expected)) {
      values.push_back(toInteger(item, itemPath(path, values.size()), min, max));
    }
  }
  std::vector<std::string> items;
  for (const std::int64_t value : values) items.push_back(std::to_string(value));
  state_->remember(path, yamlList(items));
  return values;
}

std::vector<double> Config::numbers(const std::string& path, double min, double max,
                                    std::optional<std::vector<double>> defaultValue,
                                    const std::map<std::string, std::vector<double>>& names) {
  const std::string one = expectedNumber(min, max);
  const YamlNode* node =
      state_->findValue(path, one + ", or a list of them", defaultValue.has_value());
  std::vector<double> values;
  const auto named =
      node == nullptr || node->kind == Kind::list ? names.end() : names.find(node->text);
  if (node == nullptr) {
    values = std::move(*defaultValue);
  } else if (named != names.end()) {
    values = named->second;
  } else if (node->kind != Kind::list) {
    std::string known;
    for (const auto& [name, list] : names) known += ", or " + name;
    values.push_back(toNumber(*node, path, min, max, known));
  } else {
    for (const YamlNode& item : node->children) {
      values.push_back(toNumber(item, itemPath(path, values.size()), min, max));
    }
  }
  std::vector<std::string> items;
  for (const double value : values) items.push_back(yamlNumber(value));
  state_->remember(path, items.size() == 1 ? items.front() : yamlList(items));
  return values;
}

std::vector<std::string> Config::texts(const std::string& path,
                                       std::optional<std::vector<std::string>> defaultValue) {
  const std::string expected = "a list of strings";
  const YamlNode* node = state_->findValue(path, expected, defaultValue.has_value());
  std::vector<std::string> values;
  if (node == nullptr) {
    values = std::move(*defaultValue);
  } else {
    for (const YamlNode& item : toList(*node, path, expected)) {
      values.push_back(toText(item, itemPath(path, values.size()), "text"));
    }
  }
  std::vector<std::string> items;
  for (const std::string& value : values) items.push_back(yamlText(value));
  state_->remember(path, yamlList(items));
  return values;
}

bool Config::has(const std::string& path) const {
  state_->asked.push_back(path);
  return state_->find(path) != nullptr;
}

bool Config::isMap(const std::string& path) const {
  state_->sections.insert(path);
  const YamlNode* node = state_->find(path);
  return node && node->kind == Kind::map;
}

std::vector<std::string> Config::keys(const std::string& path) const {
  state_->sections.insert(path);
  std::vector<std::string> keys;
  const YamlNode* node = state_->find(path);
  if (node == nullptr || node->kind != Kind::map) return keys;
  for (const YamlNode& child : node->children) keys.push_back(child.key);
  return keys;
}

std::string Config::where(const std::string& path) const {
  const YamlNode* node = state_->find(path);
  return node ? node->place : state_->name;
}

void Config::refuseUnknown(std::span<const DocumentedKey> documented) const {
  for (const auto& [path, node] : state_->leaves()) {
    const bool isEmpty = node->kind == Kind::nothing || node->kind == Kind::map;
    if (state_->isKnown(path) || (isEmpty && state_->isKnownSection(path))) continue;

    std::vector<std::string> known, unused;
    for (const auto& [knownPath, yaml] : state_->values) known.push_back(knownPath);
    for (const std::string& askedPath : state_->asked) {
      if (!state_->isKnown(askedPath)) known.push_back(askedPath);
    }
    for (const DocumentedKey& key : documented) {
      if (key.path == withoutIndexes(path)) {
        throw UsageError("config-unknown-key",
                         node->place + ": " + path + " has no effect with the other settings",
                         "remove it, or change the setting that it belongs to; its meaning: " +
                             firstSentence(key.meaning))
            .about(path, node->place);
      }
      unused.push_back(key.path);
    }
    std::string meant = nearestKey(path, known);
    if (meant.empty()) meant = nearestKey(path, unused);
    if (meant.empty()) meant = nearestKey(path, parentsOf(known));
    const std::string sentence = node->place + ": " + path + " is not a known key";
    if (meant.empty()) {
      throw UsageError("config-unknown-key", sentence, "remove it; " + nearbyKeys(path, known))
          .about(path, node->place);
    }
    throw UsageError("config-unknown-key", sentence + "; did you mean " + meant + "?",
                     "rename it to " + meant + ", or remove it")
        .about(path, node->place);
  }
}

std::string quotedYaml(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "''" : std::string(1, c);
  return quoted + "'";
}

std::string Config::resolved() const {
  std::string yaml;
  appendGroup(state_->values, "", "", state_->mapLists, yaml);
  return yaml;
}

std::map<std::string, std::string> Config::values() const {
  return {state_->values.begin(), state_->values.end()};
}

}  // namespace cleave
