#include "client/data/formats/target_column.h"

#include <cmath>
#include <cstring>

#include "client/data/files/cells.h"
#include "client/data/files/csv_file.h"
#include "client/data/samples/data_digest.h"
#include "common/core/error.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

std::optional<ClassList> knownClasses(bool isNumber, const nlohmann::json& learned) {
  if (learned.is_null()) return std::nullopt;
  if (isNumber) return ClassList{};
  return ClassList{learned.at("classes"), learned.at("names").get<std::vector<std::string>>()};
}

}  // namespace

TargetColumn::TargetColumn(const Options& options, const nlohmann::json& learned)
    : options_(options),
      isTraining_(learned.is_null()),
      labels_(knownClasses(options.isNumber, learned)) {
  if (isTraining_ || !options.isNumber) return;
  form_ = numberFormFrom(learned.value("form", nlohmann::json()));
  applyConfigured(form_, options.decimal);
}

void TargetColumn::add(std::string_view cell, const std::string& path, std::uint64_t line) {
  if (options_.isNumber) return addNumber(cell, path, line);
  labels_.add(cell, path, line);
}

void TargetColumn::addNumber(std::string_view cell, const std::string& path, std::uint64_t line) {
  const auto refuse = [&](const std::string& fault, const std::string& hint) {
    throw DataError("bad-label", lineOf(path, line) + ": " + fault, hint);
  };
  if (isMissing(cell)) {
    refuse(trimmed(cell).empty() ? "the target is empty"
                                 : "the target '" + printable(cell, 60) + "' is a missing value",
           "give the sample a target, or remove the row");
  }
  if (!isTraining_) {
    const std::optional<double> number = readNumber(cell, form_);
    if (!number || !std::isfinite(static_cast<float>(*number))) {
      const UnreadNumber unread = unreadNumber(cell, form_);
      refuse("the target '" + printable(cell, 60) + "' " + unread.fault, unread.hint);
    }
    numbers_.push_back(static_cast<float>(*number));
    return;
  }
  const std::optional<NumberCell> number = parseNumber(cell);
  if (!number) {
    refuse("the target '" + printable(cell, 60) + "' is not a number",
           "correct the file, or set data.target_type: class");
  }
  const auto withPoint = static_cast<float>(number->withPoint.value_or(0));
  const auto withComma = static_cast<float>(number->withComma.value_or(0));
  if (!std::isfinite(withPoint) || !std::isfinite(withComma)) {
    refuse("the target '" + printable(cell, 60) + "' is too large for fp32",
           "correct the file, or scale the targets");
  }
  learner_.add(*number, cell, line);
  numbers_.push_back(withPoint);
  withComma_.push_back(withComma);
}

void TargetColumn::addUnknown() {
  if (options_.isNumber) {
    numbers_.push_back(0);
  } else {
    labels_.addUnknown();
  }
}

void TargetColumn::finish(const std::string& path, MarkEvidence ofFile) {
  if (!options_.isNumber) return labels_.finish(path);
  if (!isTraining_) return;
  form_ =
      learner_.form(path, "the target's column '" + options_.name + "'", options_.decimal, ofFile);
  if (form_.mark == DecimalMark::comma) numbers_.swap(withComma_);
  std::vector<float>().swap(withComma_);
}

SampleArray TargetColumn::array(const std::string& name) const {
  return {name, options_.isNumber ? DType::f32 : DType::i64, {}};
}

nlohmann::json TargetColumn::learned() const {
  if (!options_.isNumber) return {{"classes", classes()}, {"names", names()}};
  nlohmann::json learned = nlohmann::json::object();
  if (const nlohmann::json form = toJson(form_); !form.is_null()) learned["form"] = form;
  return learned;
}

std::optional<std::int64_t> TargetColumn::label(std::uint32_t index) const {
  if (options_.isNumber) return std::nullopt;
  return labels_.values()[index];
}

void TargetColumn::identify(std::uint32_t index, Sha256& digest) const {
  if (options_.isNumber) {
    addValue(digest, numbers_[index]);
  } else {
    addValue(digest, labels_.values()[index]);
  }
}

void TargetColumn::write(std::uint32_t index, std::span<std::byte> out) const {
  if (options_.isNumber) {
    std::memcpy(out.data(), &numbers_[index], sizeof numbers_[index]);
  } else {
    const std::int64_t value = labels_.values()[index];
    std::memcpy(out.data(), &value, sizeof value);
  }
}

}  // namespace cleave
