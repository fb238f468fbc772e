// The data format `text`: texts with labels from tables, or plain text for language models, turned
// into token ids when the file is opened.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "client/data/files/csv_file.h"
#include "client/data/files/encoding.h"
#include "client/data/files/unpack.h"
#include "client/data/formats/format_keys.h"
#include "client/data/formats/target_column.h"
#include "client/data/samples/data_digest.h"
#include "client/data/tokens/tokenizer.h"
#include "common/core/error.h"
#include "common/core/printable.h"
#include "common/files/environment.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 31;  // about 10 GiB of memory

// Calls work(n) for each n in 0 … count - 1, on all processors. Rethrows the error of the smallest
// n.
void onAllProcessors(std::size_t count, const std::function<void(std::size_t)>& work) {
  constexpr unsigned kMaxThreads = 64;
  constexpr std::size_t kPortion = 16;  // number of indices that a thread takes at once
  std::atomic<std::size_t> next = 0;
  const std::size_t threads = std::min<std::size_t>(
      std::clamp(static_cast<unsigned>(usableCores()), 1U, kMaxThreads), count / kPortion + 1);
  struct Failure {
    std::size_t index = SIZE_MAX;
    std::exception_ptr error;
  };
  std::vector<Failure> failures(threads);
  const auto run = [&](Failure& failure) {
    for (std::size_t begin = next.fetch_add(kPortion); begin < count;
         begin = next.fetch_add(kPortion)) {
      for (std::size_t n = begin; n < std::min(begin + kPortion, count); ++n) {
        try {
          work(n);
        } catch (...) {
          failure = {n, std::current_exception()};
          return;
        }
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t t = 1; t < threads; ++t) others.emplace_back([&, t] { run(failures[t]); });
    run(failures[0]);
  }
  const auto first =
      std::min_element(failures.begin(), failures.end(),
                       [](const auto& a, const auto& b) { return a.index < b.index; });
  if (first->error) std::rethrow_exception(first->error);
}

void checkTokenCount(std::uint64_t count, const std::string& path) {
  if (count <= kMaxTokens) return;
  throwDamaged(path, "has more than 2^31 tokens",
               "use a part of it, or tokenize in Python and write the ids with "
               "cleave_split.save_dataset");
}

std::string textOf(const std::vector<std::uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// The lines of a text, with their line breaks.
std::vector<std::string_view> linesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return lines;
}

std::string_view withoutLineBreak(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// ---- Texts with labels ----

std::int64_t maxIn(const std::vector<TokenId>& ids) {
  const auto max = std::max_element(ids.begin(), ids.end());
  return max == ids.end() ? -1 : *max;
}

// A sample is one text or a pair of texts, as `length` token ids.
class LabeledTexts final : public Dataset {
 public:
  LabeledTexts(const DataFormatKeys& keys, DataSplit split, const Tokenizer& tokenizer)
      : length_(keys.length),
        padding_(paddingOf(keys, tokenizer)),
        target_({keys.targetType == "number", keys.labelColumn, decimalMarkFrom(keys.decimal)},
                split == DataSplit::train ? Json() : keys.learned.at("target")) {
    const std::size_t special = tokenizer.specialTokens(!keys.pairColumn.empty());
    if (length_ <= special) {
      throw UsageError("config-value",
                       "data.length is " + std::to_string(length_) + ", but " +
                           std::to_string(special) + " tokens mark the beginning and end of a text",
                       "set data.length to the number of tokens that the model takes")
          .about("data.length");
    }
    const std::vector<std::string> files =
        split == DataSplit::input ? inputFilesOf(keys) : std::vector{fileOf(keys, split)};
    for (const std::string& path : files) {
      files_.push_back({path, static_cast<std::uint32_t>(size())});
      if (isTablePath(path)) {
        readTable(CsvFile(path, damageOf(keys, split)), keys, split, tokenizer);
      } else {
        readPlainLines(path, keys, tokenizer);
      }
    }
    if (size() == 0) {
      throw DataError("data-empty", (files.empty() ? "the input" : files.front()) + " has no texts",
                      "give a file with at least one text");
    }
    target_.finish(files.front(), marks_.evidence());
    maxId_ = std::max<std::int64_t>(maxIn(ids_), padding_.id);
  }

  std::uint32_t size() const override { return static_cast<std::uint32_t>(lines_.size()); }
  int classes() const override { return target_.classes(); }
  std::vector<std::string> classNames() const override { return target_.names(); }
  std::optional<std::int64_t> label(std::uint32_t index) const override {
    return target_.label(index);
  }
  Json learned() const override { return {{"kind", "labels"}, {"target", target_.learned()}}; }

  std::string sampleName(std::uint32_t index) const override {
    const auto next = std::upper_bound(
        files_.begin(), files_.end(), index,
        [](std::uint32_t sample, const SourceFile& file) { return sample < file.firstSample; });
    return lineOf(std::prev(next)->path, lines_[index]);
  }

  std::vector<SampleArray> arrays() const override {
    const std::vector<std::int64_t> shape = {length_};
    return {{"input_ids", DType::i64, shape, maxId_},
            {"attention_mask", DType::i64, shape},
            {"token_type_ids", DType::i64, shape},
            target_.array("labels")};
  }

  void identify(std::uint32_t index, Sha256& digest) const override {
    const std::span<const TokenId> ids = idsOf(index);
    addValue(digest, std::uint64_t{ids.size()});
    digest.add(std::as_bytes(ids));
    target_.identify(index, digest);
  }

  void write(std::uint32_t index, std::optional<std::uint64_t>, SampleMemory out) const override {
    const std::uint64_t begin = beginOf(index);
    const std::span<const TokenId> ids = idsOf(index);
    const std::size_t count = ids.size();
    const std::size_t first = padding_.isLeft ? length_ - count : 0;
    const auto put = [&](std::size_t array, std::size_t position, std::int64_t value) {
      std::memcpy(out[array].data() + position * sizeof value, &value, sizeof value);
    };
    for (std::size_t n = 0; n < length_; ++n) {
      const bool isToken = n >= first && n - first < count;
      put(0, n, isToken ? ids[n - first] : padding_.id);
      put(1, n, isToken ? 1 : 0);
      put(2, n, isToken ? types_[begin + n - first] : padding_.type);
    }
    target_.write(index, out[3]);
  }

 private:
  struct SourceFile {
    std::string path;
    std::uint32_t firstSample;
  };
  std::uint64_t beginOf(std::uint32_t index) const { return index == 0 ? 0 : ends_[index - 1]; }
  std::span<const TokenId> idsOf(std::uint32_t index) const {
    const std::uint64_t begin = beginOf(index);
    return std::span(ids_).subspan(begin, ends_[index] - begin);
  }

  struct PendingText {
    std::string first, second;
    std::uint64_t line;
  };

  static TokenPadding paddingOf(const DataFormatKeys& keys, const Tokenizer& tokenizer) {
    std::optional<TokenPadding> padding = tokenizer.padding();
    if (keys.padToken.empty()) {
      if (padding) return *padding;
      throw UsageError("config-missing", keys.tokenizer + " has no padding token",
                       "set data.pad_token to one of its tokens, such as its end-of-text token")
          .about("data.pad_token");
    }
    const std::optional<TokenId> id = tokenizer.idOf(keys.padToken);
    if (!id) {
      throw UsageError("config-value",
                       keys.tokenizer + " has no token '" + printable(keys.padToken, 100) + "'",
                       "set data.pad_token to one of its tokens")
          .about("data.pad_token");
    }
    padding = padding.value_or(TokenPadding{});
    padding->id = *id;
    return *padding;
  }

  void readTable(const CsvFile& file, const DataFormatKeys& keys, DataSplit split,
                 const Tokenizer& tokenizer) {
    const std::size_t text =
        file.column(keys.textColumn, "set data.text to the column of the texts");
    const bool hasPair = !keys.pairColumn.empty();
    const std::size_t pair =
        hasPair ? file.column(keys.pairColumn, "set data.pair to the column of the second texts")
                : 0;
    const bool hasLabel = split != DataSplit::input;
    const std::size_t label =
        hasLabel ? file.column(keys.labelColumn, "set data.label to the column of the labels") : 0;
    if (split == DataSplit::train && keys.targetType == "number") {
      for (std::size_t n = 0; n < file.header().size(); ++n) {
        if (n != text && n != label && !(hasPair && n == pair)) marks_.addColumn(n);
      }
    }
    std::vector<PendingText> pending;
    std::size_t bytes = 0;
    const auto take = [&](std::uint64_t line, std::span<const std::string_view> cells) {
      marks_.add(cells, line);
      if (hasLabel) {
        target_.add(cells[label], file.path(), line);
      } else {
        target_.addUnknown();
      }
      pending.push_back({std::string(cells[text]), hasPair ? std::string(cells[pair]) : "", line});
      bytes += cells[text].size() + (hasPair ? cells[pair].size() : 0);
      if (bytes >= kPendingBytes || pending.size() >= kPendingTexts) {
        tokenize(pending, hasPair, tokenizer, file.path());
        bytes = 0;
      }
    };
    // Each row of an input has a prediction.
    file.forEachRow(take, hasLabel ? EmptyEnd::skip : EmptyEnd::keep);
    tokenize(pending, hasPair, tokenizer, file.path());
  }

  // Reads a file for predictions, with one text per line.
  void readPlainLines(const std::string& path, const DataFormatKeys& keys,
                      const Tokenizer& tokenizer) {
    if (!keys.pairColumn.empty()) {
      throw UsageError("no-column", path + " has one text per line, but data.pair needs two",
                       "give a .csv or .tsv file");
    }
    const std::string text = textOf(readText(path));
    std::vector<PendingText> pending;
    std::uint64_t line = 0;
    for (const std::string_view each : linesOf(text)) {
      pending.push_back({std::string(withoutLineBreak(each)), "", ++line});
      target_.addUnknown();
      if (pending.size() >= kPendingTexts) tokenize(pending, false, tokenizer, path);
    }
    tokenize(pending, false, tokenizer, path);
  }

  void tokenize(std::vector<PendingText>& pending, bool hasPair, const Tokenizer& tokenizer,
                const std::string& path) {
    std::vector<Tokens> made(pending.size());
    onAllProcessors(pending.size(), [&](std::size_t n) {
      const auto second =
          hasPair ? std::optional<std::string_view>(pending[n].second) : std::nullopt;
      made[n] = tokenizer.encodeSample(pending[n].first, second, length_);
    });
    for (std::size_t n = 0; n < pending.size(); ++n) {
      ids_.insert(ids_.end(), made[n].ids.begin(), made[n].ids.end());
      types_.insert(types_.end(), made[n].types.begin(), made[n].types.end());
      ends_.push_back(ids_.size());
      lines_.push_back(static_cast<std::uint32_t>(pending[n].line));
    }
    checkTokenCount(ids_.size(), path);
    pending.clear();
  }

  static constexpr std::size_t kPendingBytes = std::size_t{32} << 20;
  static constexpr std::size_t kPendingTexts = std::size_t{1} << 16;

  std::uint32_t length_;
  TokenPadding padding_;
  TargetColumn target_;
  MarkScan marks_;  // of the training set, if its target is a number
  std::vector<SourceFile> files_;
  std::vector<std::uint32_t> lines_;  // per sample
  std::vector<TokenId> ids_;          // all samples' ids, truncated, without padding
  std::int64_t maxId_ = -1;
  std::vector<std::uint8_t> types_;
  std::vector<std::uint64_t> ends_;  // per sample: the end of its ids in ids_
};

// ---- Text for language models ----

// The ids of each file, cut into blocks of `length`; ids after a file's last full block are
// dropped.
class TokenBlocks final : public Dataset {
 public:
  TokenBlocks(const DataFormatKeys& keys, DataSplit split, const Tokenizer& tokenizer)
      : length_(keys.length) {
    const std::vector<std::string> files =
        split == DataSplit::input ? inputFilesOf(keys) : std::vector{fileOf(keys, split)};
    for (const std::string& path : files) {
      append(path, tokenizer);
      files_.push_back({path, size()});
    }
    maxId_ = maxIn(ids_);
    if (size() > 0) return;
    throw DataError("data-empty",
                    (files.empty() ? "the input" : files.front()) + " has fewer than " +
                        std::to_string(length_) + " tokens",
                    "give more text, or lower data.length");
  }

  std::uint32_t size() const override { return static_cast<std::uint32_t>(ids_.size() / length_); }
  int classes() const override { return 0; }
  Json learned() const override { return {{"kind", "blocks"}}; }

  std::string sampleName(std::uint32_t index) const override {
    std::uint32_t first = 0;
    for (const SourceFile& file : files_) {
      if (index < file.end)
        return file.path + ", tokens " + std::to_string(std::uint64_t{index - first} * length_) +
               " … " + std::to_string(std::uint64_t{index - first + 1} * length_ - 1);
      first = file.end;
    }
    return Dataset::sampleName(index);
  }

  std::vector<SampleArray> arrays() const override {
    const std::vector<std::int64_t> shape = {length_};
    return {{"input_ids", DType::i64, shape, maxId_},
            {"attention_mask", DType::i64, shape},
            {"input_ids", DType::i64, shape}};
  }

  void identify(std::uint32_t index, Sha256& digest) const override {
    digest.add(std::as_bytes(std::span(ids_).subspan(std::size_t{index} * length_, length_)));
  }

  void write(std::uint32_t index, std::optional<std::uint64_t>, SampleMemory out) const override {
    const std::int64_t one = 1;
    for (std::size_t n = 0; n < length_; ++n) {
      const std::int64_t id = ids_[std::size_t{index} * length_ + n];
      std::memcpy(out[0].data() + n * sizeof id, &id, sizeof id);
      std::memcpy(out[1].data() + n * sizeof one, &one, sizeof one);
      std::memcpy(out[2].data() + n * sizeof id, &id, sizeof id);
    }
  }

 private:
  struct SourceFile {
    std::string path;
    std::uint32_t end;  // index after the file's last sample
  };

  // A block never spans two files.
  void append(const std::string& path, const Tokenizer& tokenizer) {
    if (isTablePath(path)) {
      throw DataError("data-damaged", path + " is a table, but the training set is plain text",
                      "give a .txt file");
    }
    const std::string text = textOf(readText(path));
    const std::vector<std::string_view> lines = linesOf(text);
    constexpr std::size_t kLinesAtOnce = std::size_t{1} << 16;
    for (std::size_t begin = 0; begin < lines.size(); begin += kLinesAtOnce) {
      std::vector<std::vector<TokenId>> made(std::min(kLinesAtOnce, lines.size() - begin));
      onAllProcessors(made.size(),
                      [&](std::size_t n) { tokenizer.encode(lines[begin + n], made[n]); });
      for (const std::vector<TokenId>& each : made)
        ids_.insert(ids_.end(), each.begin(), each.end());
      checkTokenCount(ids_.size(), path);
    }
    ids_.resize(ids_.size() / length_ * length_);
  }

  std::uint32_t length_;
  std::vector<TokenId> ids_;
  std::int64_t maxId_ = -1;
  std::vector<SourceFile> files_;
};

}  // namespace

DataFormatTable makeTextKeys() {
  using Keys = DataFormatKeys;
  constexpr std::int64_t kMaxLength = 1 << 20;
  DataFormatTable table;
  addFiles(table);
  table.requiredText("data.tokenizer", "path", &Keys::tokenizer,
                     "a tokenizer.json from Hugging Face Tokenizers");
  table.add("data.length", integerType(2, kMaxLength), "tokens", "required",
            "tokens per sample: longer texts are truncated, shorter ones are padded",
            [](Config& config, Keys& keys) {
              keys.length =
                  static_cast<std::uint32_t>(config.integer("data.length", 2, kMaxLength));
            });
  table.text("data.text", "text", &Keys::textColumn, "column of the texts");
  table.text("data.pair", "text", &Keys::pairColumn,
             "column of the second text, for models that compare two texts");
  addTarget(table);
  table.text("data.pad_token", "text", &Keys::padToken,
             "padding token; by default the tokenizer's");
  return table;
}

// Plain text is for language models; tables are texts with labels.
std::unique_ptr<Dataset> openTextSplit(const DataFormatKeys& keys, DataSplit split) {
  const Tokenizer tokenizer(keys.tokenizer);
  const bool isLabeled =
      split == DataSplit::train ? isTablePath(keys.trainFile) : keys.learned.at("kind") == "labels";
  if (!isLabeled) return std::make_unique<TokenBlocks>(keys, split, tokenizer);
  if (split != DataSplit::input && !isTablePath(fileOf(keys, split))) {
    throw DataError("data-damaged", fileOf(keys, split) + " is not a table, so it has no labels",
                    "give a .csv or .tsv file");
  }
  return std::make_unique<LabeledTexts>(keys, split, tokenizer);
}

}  // namespace cleave
