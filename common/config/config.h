// Configuration: a YAML file plus `--set a.b=c` overrides, read key by key. A key that no code read
// is an error, so mistyped keys are never ignored; every error gives file, line and the nearest
// known key.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/error.h"

namespace cleave {

// Returns `text` as a single-quoted YAML scalar.
std::string quotedYaml(std::string_view text);

struct DocumentedKey {
  std::string path;     // "train.batch"
  std::string meaning;  // Markdown
};

class Config {
 public:
  // Throws UsageError if the file does not exist, is not YAML (file:line:column) or has a duplicate
  // key, or if an override is not KEY=VALUE or its path leads through a scalar. An override's value
  // is parsed as YAML, but text() returns it as written, unless it is quoted: "[::]" is an address,
  // not a list. It replaces a scalar or a map, or adds a key.
  static Config load(const std::string& path, const std::vector<std::string>& overrides);
  // Parses text instead of a file; errors use `name` as the file name.
  static Config parse(std::string_view text, const std::string& name,
                      const std::vector<std::string>& overrides);
  Config(Config&&) noexcept;
  Config& operator=(Config&&) noexcept;
  ~Config();

  // Turns a scalar at `path` into a map that contains the scalar under `key`: "optimizer: adam"
  // becomes "optimizer: {name: adam}". Call before reading the map's keys.
  void expand(const std::string& path, const std::string& key);

  // The number of items in the list of maps at `path`. A single map counts as a list of one, and a
  // missing key as an empty list. The keys of item i are then read as "path[i].key". Throws
  // UsageError if an item is not a map.
  std::size_t items(const std::string& path);

  // Each function reads one key by its path ("train.batch"), marks it as known, and keeps its value
  // for resolved(). A key without a default is required. The functions throw UsageError if the key
  // is missing, or its value has the wrong type, is outside [min, max], or is not one of `choices`.
  std::int64_t integer(const std::string& path, std::int64_t min, std::int64_t max,
                       std::optional<std::int64_t> defaultValue = std::nullopt);
  double number(const std::string& path, double min, double max,
                std::optional<double> defaultValue = std::nullopt);
  bool boolean(const std::string& path, std::optional<bool> defaultValue = std::nullopt);
  std::string text(const std::string& path, std::optional<std::string> defaultValue = std::nullopt,
                   const std::vector<std::string>& choices = {});
  std::vector<std::int64_t> integers(const std::string& path, std::int64_t min, std::int64_t max,
                                     std::optional<std::vector<std::int64_t>> defaultValue = {});
  // Reads a list of numbers. A single number is read as a list of one. A name in `names` stands for
  // its list.
  std::vector<double> numbers(const std::string& path, double min, double max,
                              std::optional<std::vector<double>> defaultValue = {},
                              const std::map<std::string, std::vector<double>>& names = {});
  std::vector<std::string> texts(const std::string& path,
                                 std::optional<std::vector<std::string>> defaultValue = {});

  bool has(const std::string& path) const;
  bool isMap(const std::string& path) const;
  // The keys of the map at `path` ("": the whole file), in file order; empty if there is no map.
  std::vector<std::string> keys(const std::string& path) const;

  // The location of a key, for the caller's own errors: "configs/a.yaml:12", "--set train.batch=0".
  std::string where(const std::string& path) const;

  // Throws UsageError for the first key that no code read, with its location and the nearest known
  // key. `documented`: keys that exist, even if they have no effect with these values.
  void refuseUnknown(std::span<const DocumentedKey> documented = {}) const;
  // All values read, defaults included, as YAML that load() parses to the same values.
  std::string resolved() const;
  // The same values by path, as YAML: {"train.batch", "64"}. An item of a list of maps has the path
  // "insert[0].cut".
  std::map<std::string, std::string> values() const;

 private:
  struct State;
  explicit Config(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace cleave
