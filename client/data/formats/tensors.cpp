// The data format `tensors`: named arrays in safetensors or .npy files, which are mapped into
// memory.
#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

#include "client/data/formats/tensor_shards.h"
#include "client/data/samples/data_digest.h"
#include "client/data/samples/dataset.h"
#include "common/codec/safetensors.h"

namespace cleave {
namespace {

class Tensors final : public Dataset {
 public:
  explicit Tensors(const TensorsOptions& options) : knownClasses_(options.classes) {
    std::uint64_t size = 0;
    shards_ = openShards(options.file, options.report);
    for (const Shard& shard : shards_) {
      size += shard.samples;
      if (size > 0xFFFFFFFF) throwDamagedTensors(options.file, "there are more than 2^32 samples");
      ends_.push_back(static_cast<std::uint32_t>(size));
    }
    choose(options);
    checkTarget(options);
    scanInputs(options);
  }

  std::uint32_t size() const override { return ends_.back(); }
  int classes() const override {
    const SampleArray target = arrays().back();
    return target.dtype == DType::i64 && target.shape.empty() ? knownClasses_ : 0;
  }

  std::vector<SampleArray> arrays() const override {
    std::vector<SampleArray> arrays;
    for (const std::size_t a : chosen_) arrays.push_back(shards_.front().arrays[a].sample);
    if (zeros_) arrays.push_back(*zeros_);
    return arrays;
  }
  nlohmann::json learned() const override {
    const SampleArray target = arrays().back();
    return {{"target", {{"is_class", target.dtype == DType::i64}, {"shape", target.shape}}}};
  }

  std::optional<std::int64_t> label(std::uint32_t index) const override {
    if (zeros_) return std::nullopt;
    const SampleArray& target = shards_.front().arrays[chosen_.back()].sample;
    if (target.dtype != DType::i64 || !target.shape.empty()) return std::nullopt;
    std::int64_t label = 0;
    copyArray(chosen_.back(), index, reinterpret_cast<std::byte*>(&label));
    return label;
  }

  // A target that is an array may have as many values as the inputs.
  void identify(std::uint32_t index, Sha256& digest) const override {
    if (zeros_ || !arrays().back().shape.empty()) return;
    std::int64_t target = 0;
    copyArray(chosen_.back(), index, reinterpret_cast<std::byte*>(&target));
    addValue(digest, target);
  }

  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    for (const std::size_t a : chosen_) addPart(digest, stored(a, index).bytes);
  }

  void write(std::uint32_t index, std::optional<std::uint64_t>, SampleMemory out) const override {
    for (std::size_t n = 0; n < chosen_.size(); ++n) copyArray(chosen_[n], index, out[n].data());
    if (zeros_) std::fill(out.back().begin(), out.back().end(), std::byte{0});
  }

 private:
  struct StoredValues {
    const StoredArray& array;
    std::span<const std::byte> bytes;  // of the sample
  };
  StoredValues stored(std::size_t a, std::uint32_t index) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    assert(end != ends_.end());
    const Shard& shard = shards_[static_cast<std::size_t>(end - ends_.begin())];
    const std::size_t sample = index - (*end - shard.samples);
    const StoredArray& array = shard.arrays[a];
    const std::size_t bytes = array.elements * array.dtype->bytes;
    return {array, {array.data + sample * bytes, bytes}};
  }

  void copyArray(std::size_t a, std::uint32_t index, std::byte* out) const {
    const auto [array, bytes] = stored(a, index);
    array.dtype->convert(bytes.data(), array.elements, out);
  }

  // Chooses the inputs, then the target. All arrays except the target are inputs; if the target is
  // the only array, it is the input too.
  void choose(const TensorsOptions& options) {
    const std::vector<StoredArray>& arrays = shards_.front().arrays;
    std::optional<std::size_t> target;
    std::string names;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      names += (a == 0 ? "" : ", ") + arrays[a].sample.name;
      if (arrays[a].sample.name == options.target) {
        target = a;
      } else {
        chosen_.push_back(a);
      }
    }
    if (!target && options.learned.contains("target")) {
      const nlohmann::json& known = options.learned.at("target");
      zeros_ = SampleArray{options.target, known.at("is_class") ? DType::i64 : DType::f32,
                           known.at("shape")};
      return;
    }
    if (!target) {
      throw UsageError("no-target",
                       options.file + " has no array " + inAscii(options.target) +
                           " to compare the output with, only " + names,
                       "set data.target to one of them")
          .about("data.target");
    }
    if (chosen_.empty()) chosen_.push_back(*target);
    chosen_.push_back(*target);
  }

  std::string placeOf(const TensorsOptions& options, std::uint64_t sample) const {
    return options.file + ": sample " + std::to_string(sample);
  }

  // Calls each(range, index of the sample) for the values of each sample in the array.
  template <typename Each>
  void scan(std::size_t a, const Each& each) const {
    std::uint64_t sample = 0;
    for (const Shard& shard : shards_) {
      const StoredArray& array = shard.arrays[a];
      for (std::uint32_t n = 0; n < shard.samples; ++n) each(rangeOf(array, n), sample++);
    }
  }

  // Widens the range of values that arrays() says.
  void widen(std::size_t a, const ValueRange& range) {
    SampleArray& array = shards_.front().arrays[a].sample;
    array.minValue = std::min(array.minValue, range.min);
    array.maxValue = std::max(array.maxValue, range.max);
  }

  std::uint64_t bytesOf(std::size_t a) const {
    const StoredArray& array = shards_.front().arrays[a];
    return std::uint64_t{size()} * array.elements * array.dtype->bytes;
  }

  // Throws DataError "bad-label", or reports each sample, if a class is negative or too large.
  void checkTarget(const TensorsOptions& options) {
    const SampleArray target = arrays().back();
    if (zeros_ || !options.ignoredLabel || target.dtype != DType::i64) return;
    if (!target.shape.empty() && bytesOf(chosen_.back()) > kMaxScannedBytes) return;
    const std::int64_t end = target.shape.empty() && knownClasses_ > 0 ? knownClasses_ : INT64_MAX;
    const bool isInput =
        std::count(chosen_.begin(), chosen_.end(), chosen_.back()) > 1;  // token ids
    std::uint64_t sample = 0;
    for (const Shard& shard : shards_) {
      for (std::uint32_t n = 0; n < shard.samples; ++n, ++sample) {
        const ValueRange range = rangeOf(shard.arrays[chosen_.back()], n, options.ignoredLabel);
        if (range.min < 0 || range.max >= end) {
          const std::string place = placeOf(options, sample);
          orReport(options.report, place, [&] {
            throwBadLabel(place, target.name, range.min < 0 ? range.min : range.max, end);
          });
        } else if (!isInput) {
          widen(chosen_.back(), range);
        }
      }
    }
  }

  [[noreturn]] static void throwBadLabel(const std::string& place, const std::string& array,
                                         std::int64_t label, std::int64_t end) {
    throw DataError("bad-label",
                    place + " has the label " + std::to_string(label) + " in the array " + array +
                        (label < 0 ? ", but classes are numbered from 0"
                                   : ", but data.classes is " + std::to_string(end)),
                    label < 0
                        ? "number the classes from 0; to leave these samples out of the loss, set "
                          "train.loss.ignore_index: " +
                              std::to_string(label)
                        : "correct the labels, or set data.classes to their number");
  }

  // Finds the range of the integers. Throws DataError "data-damaged" for a NaN, unless damage is
  // reported, which `data check` does as it reads the samples.
  void scanInputs(const TensorsOptions& options) {
    std::uint64_t bytes = 0;
    const std::set<std::size_t> chosen(chosen_.begin(), chosen_.end());
    for (const std::size_t a : chosen) {
      bytes += bytesOf(a);
      if (bytes > kMaxScannedBytes) return;
      const bool isClass = !zeros_ && a == chosen_.back() && a != chosen_.front();
      if (isClass && shards_.front().arrays[a].sample.dtype == DType::i64) continue;
      scan(a, [&](const ValueRange& range, std::uint64_t sample) {
        if (range.hasNaN && !options.report) {
          throw DataError("data-damaged",
                          placeOf(options, sample) + " has a value that is NaN, in the array " +
                              shards_.front().arrays[a].sample.name,
                          "correct the data; to list all such samples: cleave-client data check "
                          "--config FILE");
        }
        widen(a, range);
      });
    }
  }

  // More would take longer to read than to begin a run.
  static constexpr std::uint64_t kMaxScannedBytes = std::uint64_t{1} << 30;

  const int knownClasses_;
  std::vector<Shard> shards_;
  std::vector<std::uint32_t> ends_;   // per shard: number of samples up to and including it
  std::vector<std::size_t> chosen_;   // positions of the inputs and the target in Shard::arrays
  std::optional<SampleArray> zeros_;  // the target, if the file has none
};

// A view of another dataset with some of its arrays as inputs, and the same target.
class Selection final : public Dataset {
 public:
  Selection(std::shared_ptr<const Dataset> data, std::vector<std::size_t> chosen)
      : data_(std::move(data)), all_(data_->arrays()), chosen_(std::move(chosen)) {}

  std::uint32_t size() const override { return data_->size(); }
  int classes() const override { return data_->classes(); }
  std::vector<std::string> classNames() const override { return data_->classNames(); }
  std::string sampleName(std::uint32_t index) const override { return data_->sampleName(index); }
  void identify(std::uint32_t index, Sha256& digest) const override {
    data_->identify(index, digest);
  }
  void identifyContent(std::uint32_t index, Sha256& digest) const override {
    data_->identifyContent(index, digest);
  }
  nlohmann::json learned() const override { return data_->learned(); }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return data_->label(index);
  }

  std::vector<SampleArray> arrays() const override {
    std::vector<SampleArray> arrays;
    for (const std::size_t a : chosen_) arrays.push_back(all_[a]);
    return arrays;
  }

  void write(std::uint32_t index, std::optional<std::uint64_t> epoch,
             SampleMemory out) const override {
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::span<std::byte>> sample;
    for (const SampleArray& array : all_)
      sample.emplace_back(memory.emplace_back(specOf(array, 1).bytes()));
    data_->write(index, epoch, sample);
    for (std::size_t n = 0; n < chosen_.size(); ++n) {
      std::copy(sample[chosen_[n]].begin(), sample[chosen_[n]].end(), out[n].begin());
    }
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<SampleArray> all_;
  std::vector<std::size_t> chosen_;
};

}  // namespace

std::unique_ptr<Dataset> openTensors(const TensorsOptions& options) {
  return std::make_unique<Tensors>(options);
}

std::shared_ptr<const Dataset> selectInputs(std::shared_ptr<const Dataset> data,
                                            const std::vector<std::string>& names) {
  const std::vector<SampleArray> arrays = data->arrays();
  std::vector<std::size_t> chosen;
  std::string known;
  for (auto array = arrays.begin(); array != arrays.end(); ++array) {
    const bool isNew = std::none_of(
        arrays.begin(), array, [&](const SampleArray& each) { return each.name == array->name; });
    if (isNew) known += (known.empty() ? "" : ", ") + array->name;
  }
  for (const std::string& name : names) {
    const auto found = std::find_if(arrays.begin(), arrays.end(),
                                    [&](const SampleArray& each) { return each.name == name; });
    if (found == arrays.end()) {
      throw UsageError(
          "no-input",
          "the data has no array " + inAscii(name) +
              ", which is an input of the model; its arrays are " + known,
          "rename an array in the data, or export the model with inputs of these names")
          .about("data.train.file");
    }
    chosen.push_back(static_cast<std::size_t>(found - arrays.begin()));
  }
  chosen.push_back(arrays.size() - 1);
  return std::make_shared<Selection>(std::move(data), std::move(chosen));
}

}  // namespace cleave
