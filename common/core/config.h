// Configuration: a YAML file plus `--set a.b=c` overrides, read key by key. What nobody read is an
// error, so that a mistyped key cannot be ignored; every error says file, line and the nearest
// known key.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/core/error.h"

namespace cleave {

class Config {
 public:
  // Throws UsageError: no such file, not YAML (file:line:column), an override that is not
  // KEY=VALUE, a duplicate key, or a path through a scalar. An override's value is parsed as YAML;
  // it replaces a scalar, adds a key, or replaces a map.
  static Config load(const std::string& path, const std::vector<std::string>& overrides);
  // The same from text; `name` stands for the file in errors.
  static Config parse(std::string_view text, const std::string& name,
                      const std::vector<std::string>& overrides);
  Config(Config&&) noexcept;
  Config& operator=(Config&&) noexcept;
  ~Config();

  // A value alone at `path` is from now on its map's `key`: "optimizer: adam" is "optimizer: {name:
  // adam}". Before the map's keys are read.
  void expand(const std::string& path, const std::string& key);

  // Each reads one key by its path ("train.batch") and remembers it as known, and its value for
  // resolved(). With no default the key must be there. Throw UsageError: missing, wrong type, out
  // of [least, greatest], not one of `choices`.
  std::int64_t integer(const std::string& path, std::int64_t least, std::int64_t greatest,
                       std::optional<std::int64_t> defaultValue = std::nullopt);
  double number(const std::string& path, double least, double greatest,
                std::optional<double> defaultValue = std::nullopt);
  bool boolean(const std::string& path, std::optional<bool> defaultValue = std::nullopt);
  std::string text(const std::string& path, std::optional<std::string> defaultValue = std::nullopt,
                   const std::vector<std::string>& choices = {});
  std::vector<std::int64_t> integers(const std::string& path, std::int64_t least,
                                     std::int64_t greatest,
                                     std::optional<std::vector<std::int64_t>> defaultValue = {});
  // A list, or one number, which is a list of one.
  std::vector<double> numbers(const std::string& path, double least, double greatest,
                              std::optional<std::vector<double>> defaultValue = {});
  std::vector<std::string> texts(const std::string& path,
                                 std::optional<std::vector<std::string>> defaultValue = {});

  bool has(const std::string& path) const;
  bool isMap(const std::string& path) const;
  // The keys of the map at `path` ("": of the whole file), in file order; empty where there is
  // none.
  std::vector<std::string> keys(const std::string& path) const;

  // Where a key stands, for errors of the caller's own: "configs/a.yaml:12", "--set train.batch=0".
  std::string where(const std::string& path) const;

  // Throws UsageError for the first key that nobody read: where it is, and the nearest key that was
  // read.
  void refuseUnknown() const;
  // All values read, defaults included, as YAML that load() reads back to the same.
  std::string resolved() const;

 private:
  struct State;
  explicit Config(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The candidate with the least edit distance to `word`, where that is small enough to be a typing
// error; else empty.
std::string nearestName(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace cleave
