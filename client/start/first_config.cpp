#include "client/start/first_config.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "common/config/config.h"
#include "common/core/printable.h"
#include "common/core/yaml.h"
#include "common/topology/step.h"

namespace cleave {
namespace {

constexpr std::int64_t kSmallImage = 64;  // pixels; below it, a small model suffices

std::int64_t shorterSide(const ImageHeader& image) { return std::min(image.height, image.width); }

bool areEqual(const std::vector<ImageHeader>& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](const ImageHeader& each) {
    return each.height == sizes[0].height && each.width == sizes[0].width;
  });
}

std::string sizesText(const std::vector<ImageHeader>& sizes) {
  const auto textOf = [](const ImageHeader& image) {
    return fmt::format("{} x {}", image.width, image.height);
  };
  if (areEqual(sizes)) return textOf(sizes[0]);
  const auto [min, max] = std::minmax_element(
      sizes.begin(), sizes.end(),
      [](const auto& a, const auto& b) { return a.width * a.height < b.width * b.height; });
  return textOf(*min) + " to " + textOf(*max);
}

std::int64_t medianSide(const std::vector<ImageHeader>& sizes) {
  std::vector<std::int64_t> sides;
  for (const ImageHeader& image : sizes) sides.push_back(shorterSide(image));
  const auto middle = sides.begin() + static_cast<std::ptrdiff_t>(sides.size() / 2);
  std::nth_element(sides.begin(), middle, sides.end());
  return *middle;
}

// For squares of `side` pixels. Large ones are cropped from a slightly larger image, as is usual
// for ImageNet's models: 256 to 224.
void resizeTo(std::int64_t side, ImageChoice& choice) {
  constexpr std::int64_t kCropped = 160;
  choice.crop = side;
  choice.resize = side < kCropped ? side : (side * 8 + 6) / 7;
  choice.reason += fmt::format(
      "; the shorter side becomes {}, and the {} x {} pixels at the centre "
      "are used",
      choice.resize, side, side);
}

// Whether YAML reads the text as the same text without quotes, also within [ ] and { }.
bool isPlain(const std::string& text) {
  const bool hasLetter = std::any_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalpha(c) != 0 && std::tolower(c) != 'e' && std::tolower(c) != 'x';
  });
  const bool isSafe = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '/' || c == '.' || c == '_' || c == '-';
  });
  std::string lower = text;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* word :
       {"true", "false", "yes", "no", "on", "off", "null", "y", "n", ".inf", ".nan"}) {
    if (lower == word) return false;
  }
  return hasLetter && isSafe && !text.starts_with('-');
}

std::string comment(const std::string& text) {
  constexpr std::size_t kWidth = 110;
  std::string lines, line = "#";
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (line.size() > 1 && line.size() + 1 + (end - at) > kWidth) {
      lines += line + "\n";
      line = "#";
    }
    line += " " + text.substr(at, end - at);
    at = end + 1;
  }
  return lines + line + "\n";
}

// The lines of a configuration: sections of keys, with comments.
class Document {
 public:
  // `path`: "data.train.folder". `after`: a comment behind the value.
  void add(const std::string& path, const std::string& value, const std::string& after = "") {
    entries_.push_back({path, value, after});
  }
  // A comment before a section or a key of a section.
  void comment(const std::string& path, const std::string& text) { comments_[path] += text; }
  // Replaces the value of the path and all below, or adds it.
  void set(const std::string& path, const YamlNode& node) {
    const auto isBelow = [&](const Entry& entry) {
      return entry.path == path || entry.path.starts_with(path + ".");
    };
    auto at = std::find_if(entries_.begin(), entries_.end(), isBelow);
    at = entries_.insert(at, {path, inlineNode(node), ""});
    entries_.erase(std::remove_if(at + 1, entries_.end(), isBelow), entries_.end());
    if (node.kind != YamlNode::Kind::map || node.children.empty()) return;
    // A later override may change a key of this map.
    at = entries_.erase(at);
    for (const YamlNode& child : node.children) set(path + "." + child.key, child);
  }

  std::string text() const {
    std::string text;
    for (const std::string& section : keysBelow("")) {
      text += (text.empty() ? "" : "\n") + commentOf(section, "");
      if (find(section) != nullptr || isInline(section)) {
        text += lineOf(section, section);
        continue;
      }
      text += section + ":\n";
      for (const std::string& key : keysBelow(section + "."))
        text += commentOf(section + "." + key, "  ") + "  " + lineOf(section + "." + key, key);
    }
    return text;
  }

 private:
  struct Entry {
    std::string path, value, after;
  };

  static bool isInline(const std::string& section) {
    return section == "run" || section == "model" || section == "keep";
  }

  // [a, {b: c}]
  static std::string inlineNode(const YamlNode& node) {
    using Kind = YamlNode::Kind;
    if (node.kind == Kind::nothing) return "null";
    if (node.kind == Kind::scalar) {
      const bool isSafe = std::all_of(node.text.begin(), node.text.end(), [](unsigned char each) {
        return std::isalnum(each) != 0 ||
               std::string_view("._+-/").find(static_cast<char>(each)) != std::string_view::npos;
      });
      return isSafe && !node.quoted && !node.text.empty() ? node.text : quotedYaml(node.text);
    }
    std::string text;
    for (const YamlNode& child : node.children) {
      text += (text.empty() ? "" : ", ") + (node.kind == Kind::map ? child.key + ": " : "") +
              inlineNode(child);
    }
    return node.kind == Kind::map ? "{" + text + "}" : "[" + text + "]";
  }

  const Entry* find(const std::string& path) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.path == path; });
    return found == entries_.end() ? nullptr : &*found;
  }

  // The next components of the paths that begin with `prefix`, each once.
  std::vector<std::string> keysBelow(const std::string& prefix) const {
    std::vector<std::string> keys;
    for (const Entry& entry : entries_) {
      if (!entry.path.starts_with(prefix)) continue;
      std::string key = entry.path.substr(prefix.size());
      key = key.substr(0, key.find('.'));
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
    return keys;
  }

  std::string valueOf(const std::string& path) const {
    if (const Entry* entry = find(path)) return entry->value;
    YamlKeys keys;
    for (const std::string& key : keysBelow(path + "."))
      keys.emplace_back(key, valueOf(path + "." + key));
    return inlineMap(keys);
  }

  // "key: value  # comment"
  std::string lineOf(const std::string& path, const std::string& key) const {
    std::string line = key + ": " + valueOf(path);
    for (const Entry& entry : entries_) {
      if (entry.after.empty() || (entry.path != path && !entry.path.starts_with(path + ".")))
        continue;
      constexpr std::size_t kColumn = 24;
      line.resize(std::max(line.size() + 2, kColumn), ' ');
      return line + "# " + entry.after + "\n";
    }
    return line + "\n";
  }

  std::string commentOf(const std::string& path, const std::string& indent) const {
    const auto found = comments_.find(path);
    if (found == comments_.end()) return "";
    std::string text;
    for (std::size_t at = 0; at < found->second.size();) {
      const std::size_t end = found->second.find('\n', at) + 1;
      text += indent + found->second.substr(at, end - at);
      at = end;
    }
    return text;
  }

  std::vector<Entry> entries_;
  std::map<std::string, std::string> comments_;  // whole lines
};

void addImages(Document& document, const ImageChoice& images, bool hasColours, bool isIdx) {
  if (images.channels == 1 && !isIdx) document.add("data.channels", "1");
  if (images.resize > 0) {
    document.add("data.resize", std::to_string(images.resize));
    document.add("data.crop", std::to_string(images.crop));
  }
  const std::string statistics = hasColours ? "imagenet" : "0.5";
  document.add("data.mean", statistics,
               hasColours ? "the usual statistics of photos; use those with which your weights "
                            "were trained"
                          : "");
  document.add("data.std", statistics);
  document.add("data.augment.flip", "true",
               "remove this if left and right have a meaning, as in text");
}

void addData(Document& document, const FirstConfig& config) {
  document.comment("data", comment(config.dataComment));
  if (config.images) document.comment("data", comment("Images: " + config.images->reason + "."));
  document.add("data.format", config.data.format);
  for (const bool isSplit : {true, false}) {
    for (const auto& [key, value] : config.data.keys) {
      if ((key.find('.') != std::string::npos) == isSplit)
        document.add("data." + key, yamlScalar(value));
    }
  }
  if (!config.data.ignored.empty() && config.data.format == "csv") {
    std::string names;
    document.comment("data.ignore", comment("Columns that are no inputs:"));
    for (const auto& [name, reason] : config.data.ignored) {
      names += (names.empty() ? "" : ", ") + yamlScalar(name);
      document.comment("data.ignore", comment("- " + printable(name, 60) + ": " + reason));
    }
    document.add("data.ignore", "[" + names + "]");
  }
  if (config.holdout > 0) {
    document.add("data.holdout", std::to_string(config.holdout),
                 "there is no test set, so these samples are used to evaluate, not to train");
  }
  if (config.classes > 0) document.add("data.classes", std::to_string(config.classes));
  if (config.length > 0)
    document.add("data.length", std::to_string(config.length), "tokens per text");
  if (config.images)
    addImages(document, *config.images, config.hasColours, config.data.format == "idx");
}

void addTraining(Document& document, const FirstConfig& config) {
  if (!config.lossComment.empty()) document.comment("train.loss", comment(config.lossComment));
  if (!config.loss.empty()) document.add("train.loss", config.loss);
  document.add("train.epochs", "10");
  document.add("train.batch", std::to_string(config.batch.batch));
  document.comment("train.micro_batches",
                   "# Parts of a batch, so that both machines and the link work at the same time. "
                   "Batch norm needs about 8\n# samples in each.\n");
  document.add("train.micro_batches", std::to_string(config.batch.microBatches));
  document.add("train.optimizer", "adamw");
  document.add("train.learning_rate.schedule", "cosine");
  document.add("train.learning_rate.peak", fmt::format("{}", config.learningRate));
  if (!config.bestMetric.empty())
    document.add("keep.best", config.bestMetric, "also keeps the model of the best epoch");
}

}  // namespace

ImageChoice chooseImages(const std::vector<ImageHeader>& sizes,
                         const std::optional<ImageInput>& model) {
  ImageChoice choice;
  choice.reason = sizesText(sizes) + " pixels";
  if (model) {
    choice.channels = model->channels;
    const bool fits =
        areEqual(sizes) && sizes[0].height == model->height && sizes[0].width == model->width;
    choice.reason += fmt::format("; the model takes {} x {}", model->width, model->height);
    if (fits) return choice;
    if (model->height != model->width) {
      throw UsageError("bad-input",
                       fmt::format("the model takes images of {} x {} pixels, but the data has {}, "
                                   "and images can only be resized to squares",
                                   model->width, model->height, sizesText(sizes)),
                       "export the model with square images, or resize the images before training");
    }
    resizeTo(model->height, choice);
    return choice;
  }
  const std::int64_t side = medianSide(sizes);
  choice.builtIn = side < kSmallImage ? "small_cnn" : "mobilenet_v2";
  if (side < kSmallImage && areEqual(sizes)) return choice;
  if (side < kSmallImage) {
    resizeTo(32, choice);
  } else {
    constexpr std::int64_t kImageNet = 224, kStep = 32;
    resizeTo(std::min(kImageNet, side / kStep * kStep), choice);
  }
  return choice;
}

BatchChoice chooseBatch(std::uint32_t trainingSamples) {
  constexpr std::uint32_t kMax = 32, kMin = 8, kPerPart = 8, kMaxParts = 4;
  std::uint32_t preferred = kMax;
  while (preferred > kMin && preferred * 4 > trainingSamples) preferred /= 2;
  const auto isGood = [&](std::uint32_t batch, std::uint32_t parts) {
    const std::uint32_t rest = trainingSamples % batch;
    return batch <= trainingSamples && Division::of(batch, parts).smallest() >= kPerPart &&
           (rest == 0 || Division::of(rest, parts).smallest() >= kPerPart);
  };
  for (std::uint32_t parts = std::min(preferred / kPerPart, kMaxParts); parts > 0; --parts) {
    for (std::uint32_t distance = 0; distance <= preferred; ++distance) {
      if (distance < preferred && isGood(preferred - distance, parts))
        return {preferred - distance, parts};
      if (isGood(preferred + distance, parts)) return {preferred + distance, parts};
    }
  }
  return {std::max(trainingSamples, 1u), 1};
}

std::string yamlScalar(const std::string& text) { return isPlain(text) ? text : quotedYaml(text); }

std::string inlineMap(const YamlKeys& keys) {
  std::string text;
  for (const auto& [key, value] : keys) text += (text.empty() ? "" : ", ") + key + ": " + value;
  return "{" + text + "}";
}

std::string yamlOf(const FirstConfig& config) {
  Document document;
  document.add("run.name", yamlScalar(config.name));
  for (const std::string& each : config.modelComments) document.comment("model", comment(each));
  for (const auto& [key, value] : config.model) document.add("model." + key, value);
  addData(document, config);
  addTraining(document, config);
  for (const std::string& each : config.overrides) {
    const std::size_t equals = each.find('=');
    document.set(each.substr(0, equals),
                 parseYamlValue(std::string_view(each).substr(equals + 1), "--set " + each));
  }
  return comment("Written by: " + config.madeFor) +
         "# All keys: cleave-client keys, or docs/configuration.md\n\n" + document.text();
}

}  // namespace cleave
