// Tables of configuration keys. Each key of a program is one row: how to read it into the program's
// settings, and the text that the command `keys` and docs/configuration.md show.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/config/config.h"

namespace cleave {

// Who else has the value of a key: a run that is resumed, or servers.
enum class KeyMark : std::uint8_t {
  fixed,      // a run that is resumed has the same value
  sent,       // likewise, and the client sends the value to servers, which compare it
  mayChange,  // a run that is resumed may have another value
};

// The printed description of a key. Texts are Markdown.
struct KeyText {
  std::string section;
  std::string name;  // the path: "train.batch"
  std::string type;  // with its range: "integer, 1 … 65536"
  std::string unit;
  std::string defaultValue;  // "`64`", "none", "required"
  std::string meaning;
  KeyMark mark = KeyMark::fixed;
};

enum class KeyFormat { plain, markdown, json };
// Prints all rows in order. Plain text and JSON omit the Markdown marks. The marks of keys are
// printed if a key of the table has one other than `fixed`.
std::string printKeys(const std::vector<KeyText>& keys, KeyFormat format);

// "integer, 1 … 65536", "number, 0.1 … 1e6".
std::string integerType(std::int64_t min, std::int64_t max);
std::string numberType(double min, double max);
// "`0.1`".
std::string defaultText(double value);

template <typename Settings>
struct ConfigKey {
  KeyText text;
  std::function<void(Config&, Settings&)> read;   // empty: another row reads this key
  std::function<bool(const Settings&)> isNeeded;  // empty: always
  std::function<void(Config&, Settings&)> check;  // runs after `read`; empty: none

  ConfigKey& onlyIf(std::function<bool(const Settings&)> condition) {
    isNeeded = std::move(condition);
    return *this;
  }
  ConfigKey& mayChange() {
    text.mark = KeyMark::mayChange;
    return *this;
  }
  ConfigKey& sent() {
    text.mark = KeyMark::sent;
    return *this;
  }
  ConfigKey& then(std::function<void(Config&, Settings&)> function) {
    check = std::move(function);
    return *this;
  }
};

// Rows are read in order, so a row's functions may use the settings of the rows before it. A
// `field` is a member pointer, or a function from Settings& to a reference. A key's default is the
// value that its field has in `Settings{}`.
template <typename Settings>
class ConfigTable {
 public:
  using Row = ConfigKey<Settings>;

  // Sets the section of the rows that follow.
  void section(std::string name) { section_ = std::move(name); }

  template <typename Field>
  Row& integer(const std::string& name, const std::string& unit, std::int64_t min, std::int64_t max,
               Field field, const std::string& meaning) {
    const auto initial = static_cast<std::int64_t>(initialOf(field));
    return add(name, integerType(min, max), unit, quoted(std::to_string(initial)), meaning,
               [=](Config& config, Settings& settings) {
                 auto& value = std::invoke(field, settings);
                 value = static_cast<std::remove_reference_t<decltype(value)>>(
                     config.integer(name, min, max, initial));
               });
  }

  template <typename Field>
  Row& number(const std::string& name, const std::string& unit, double min, double max, Field field,
              const std::string& meaning) {
    const double initial = initialOf(field);
    return add(name, numberType(min, max), unit, defaultText(initial), meaning,
               [=](Config& config, Settings& settings) {
                 std::invoke(field, settings) = config.number(name, min, max, initial);
               });
  }

  // A number of seconds, stored in milliseconds.
  template <typename Field>
  Row& seconds(const std::string& name, double min, double max, Field field,
               const std::string& meaning) {
    const double initial = std::chrono::duration<double>(initialOf(field)).count();
    return add(name, numberType(min, max), "s", defaultText(initial), meaning,
               [=](Config& config, Settings& settings) {
                 const double value = config.number(name, min, max, initial);
                 std::invoke(field, settings) =
                     std::chrono::milliseconds(static_cast<std::int64_t>(1000 * value));
               });
  }

  // An integer in MiB, stored in bytes.
  template <typename Field>
  Row& mebibytes(const std::string& name, std::int64_t min, std::int64_t max, Field field,
                 const std::string& meaning) {
    constexpr std::size_t kBytes = std::size_t{1} << 20;
    const auto initial = static_cast<std::int64_t>(initialOf(field) / kBytes);
    return add(name, integerType(min, max), "MiB", quoted(std::to_string(initial)), meaning,
               [=](Config& config, Settings& settings) {
                 std::invoke(field, settings) =
                     kBytes * static_cast<std::size_t>(config.integer(name, min, max, initial));
               });
  }

  template <typename Field>
  Row& boolean(const std::string& name, Field field, const std::string& meaning) {
    const bool initial = initialOf(field);
    return add(name, "boolean", "", quoted(initial ? "true" : "false"), meaning,
               [=](Config& config, Settings& settings) {
                 std::invoke(field, settings) = config.boolean(name, initial);
               });
  }

  // `type` describes the text: "path", "IP address". An empty default is printed as "none".
  template <typename Field>
  Row& text(const std::string& name, const std::string& type, Field field,
            const std::string& meaning) {
    const std::string initial = initialOf(field);
    return add(name, type, "", initial.empty() ? "none" : quoted(initial), meaning,
               [=](Config& config, Settings& settings) {
                 std::invoke(field, settings) = config.text(name, initial);
               });
  }

  // Required text, without a default.
  template <typename Field>
  Row& requiredText(const std::string& name, const std::string& type, Field field,
                    const std::string& meaning) {
    return add(name, type, "", "required", meaning, [=](Config& config, Settings& settings) {
      std::invoke(field, settings) = config.text(name);
    });
  }

  // A key of any other form. `read` may be empty if another row reads the key.
  Row& add(const std::string& name, std::string type, std::string unit, std::string defaultValue,
           std::string meaning, std::function<void(Config&, Settings&)> read) {
    rows_.push_back({{section_, name, std::move(type), std::move(unit), std::move(defaultValue),
                      std::move(meaning)},
                     std::move(read),
                     nullptr,
                     nullptr});
    return rows_.back();
  }

  // The row with this name.
  Row& row(const std::string& name) {
    return *std::find_if(rows_.begin(), rows_.end(),
                         [&](const Row& each) { return each.text.name == name; });
  }

  // Text that is one of `choices`. The default is the field's initial value; an empty one means
  // that the key is required.
  template <typename Field>
  Row& choice(const std::string& name, const std::vector<std::string>& choices, Field field,
              const std::string& meaning) {
    const std::string initial = initialOf(field);
    std::string type;
    for (const std::string& each : choices) type += (type.empty() ? "" : ", ") + quoted(each);
    return add(name, type, "", initial.empty() ? "required" : quoted(initial), meaning,
               [=](Config& config, Settings& settings) {
                 const auto preset = initial.empty() ? std::nullopt : std::optional(initial);
                 std::invoke(field, settings) = config.text(name, preset, choices);
               });
  }

  // Throws UsageError for the first key with an invalid value, then for the first unknown key.
  Settings read(Config& config) const {
    Settings settings{};
    readInto(config, settings);
    std::vector<DocumentedKey> documented;
    for (const Row& row : rows_) documented.push_back({row.text.name, row.text.meaning});
    config.refuseUnknown(documented);
    return settings;
  }
  // Like read(), but accepts unknown keys, because other tables may read them.
  void readInto(Config& config, Settings& settings) const {
    for (const Row& row : rows_) {
      if (row.isNeeded && !row.isNeeded(settings)) continue;
      if (row.read) row.read(config, settings);
      if (row.check) row.check(config, settings);
    }
  }

  std::vector<KeyText> texts() const {
    std::vector<KeyText> texts;
    for (const Row& row : rows_) texts.push_back(row.text);
    return texts;
  }

 private:
  template <typename Field>
  static auto initialOf(Field field) {
    Settings settings{};
    return std::invoke(field, settings);
  }
  static std::string quoted(const std::string& value) { return "`" + value + "`"; }

  std::string section_;
  std::vector<Row> rows_;
};

}  // namespace cleave
