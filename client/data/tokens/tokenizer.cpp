#include "client/data/tokens/tokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "client/data/files/unicode.h"
#include "client/data/files/unpack.h"
#include "client/data/tokens/split_pattern.h"
#include "common/core/error.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxTokenizerBytes = std::size_t{128} << 20;

// The pattern that byte-level tokenizers use if their file has none (GPT-2's).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string typeOf(const Json& part, const std::string& path) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  if (!part.is_object() || type == part.end() || !type->is_string())
    throwDamagedTokenizer(path, "a part has no type");
  return type->get<std::string>();
}

// The parts of a "Sequence"; the part itself if it is not a "Sequence"; nothing if it is null.
std::vector<Json> partsOf(const Json& file, const std::string& key, const std::string& list,
                          const std::string& path) {
  const auto part = file.find(key);
  if (part == file.end() || part->is_null()) return {};
  if (typeOf(*part, path) != "Sequence") return {*part};
  const auto parts = part->find(list);
  if (parts == part->end() || !parts->is_array())
    throwDamagedTokenizer(path, "its " + key + " has no list '" + list + "'");
  return *parts;
}

// ---- Normalization ----

using Normalizer = std::function<std::string(std::string_view)>;

bool isChinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

struct BertNormalizer {
  bool cleansText = true, separatesChinese = true, stripsAccents = true, lowers = true;

  std::string operator()(std::string_view text) const {
    std::string result;
    result.reserve(text.size());
    for (std::size_t position = 0; position < text.size();) {
      const char32_t c = nextCharacter(text, position);
      const bool isBlank = cleansText && isWhitespace(c);
      const bool isLineOrTab = c == '\t' || c == '\n' || c == '\r';
      if (cleansText && !isLineOrTab && (c == 0xFFFD || isControlOrFormat(c))) continue;
      if (separatesChinese && isChinese(c)) {
        result += ' ';
        appendCharacter(result, c);
        result += ' ';
      } else {
        appendCharacter(result, isBlank ? U' ' : c);
      }
    }
    if (stripsAccents) result = withoutMarks(cleave::normalize(result, NormalForm::nfd));
    return lowers ? toLower(result) : result;
  }

  static std::string withoutMarks(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    for (std::size_t position = 0; position < text.size();) {
      const char32_t c = nextCharacter(text, position);
      if (!isNonspacingMark(c)) appendCharacter(result, c);
    }
    return result;
  }
};

Normalizer normalizerOf(const Json& part, const std::string& path) {
  const std::string type = typeOf(part, path);
  if (type == "BertNormalizer") {
    BertNormalizer bert;
    bert.cleansText = part.value("clean_text", true);
    bert.separatesChinese = part.value("handle_chinese_chars", true);
    bert.lowers = part.value("lowercase", true);
    const auto strips = part.find("strip_accents");
    bert.stripsAccents =
        strips == part.end() || strips->is_null() ? bert.lowers : strips->get<bool>();
    return bert;
  }
  if (type == "Lowercase") return toLower;
  for (const auto& [name, form] :
       {std::pair{"NFC", NormalForm::nfc}, std::pair{"NFD", NormalForm::nfd},
        std::pair{"NFKC", NormalForm::nfkc}, std::pair{"NFKD", NormalForm::nfkd}}) {
    if (type == name) return [form](std::string_view text) { return normalize(text, form); };
  }
  throwUnsupportedTokenizer(path, "the normalizer " + type);
}

// ---- Splitting into words ----

using TakePiece = std::function<void(std::string_view)>;
using Splitter = std::function<void(std::string_view, const TakePiece&)>;

void splitAsBert(std::string_view text, const TakePiece& take) {
  std::size_t begin = 0;  // start of the current word
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t here = position;
    const char32_t c = nextCharacter(text, position);
    const bool isMark = isPunctuation(c);
    if (!isMark && !isWhitespace(c)) continue;
    if (here > begin) take(text.substr(begin, here - begin));
    if (isMark) take(text.substr(here, position - here));
    begin = position;
  }
  if (begin < text.size()) take(text.substr(begin));
}

Splitter splitterOfPattern(const Json& part, const std::string& path) {
  const std::string behavior = part.at("behavior");
  const bool isInverted = part.value("invert", false);
  if (behavior != "Isolated" && behavior != "Removed")
    throwUnsupportedTokenizer(path, "a Split with the behavior " + behavior);
  const Json& given = part.at("pattern");
  const bool isRegex = given.contains("Regex");
  const SplitPattern pattern =
      isRegex ? SplitPattern::ofRegex(given.at("Regex")) : SplitPattern::ofText(given.at("String"));
  const bool removes = behavior == "Removed";
  return [=](std::string_view text, const TakePiece& take) {
    pattern.split(text, [&](std::string_view piece, bool isMatch) {
      if (!removes || isMatch == isInverted) take(piece);
    });
  };
}

Splitter byteLevelSplitter(const Json& part) {
  const bool addsSpace = part.value("add_prefix_space", true);
  if (!part.value("use_regex", true)) {
    return [=](std::string_view text, const TakePiece& take) {
      if (!addsSpace || text.starts_with(' ')) return take(text);
      take(' ' + std::string(text));
    };
  }
  const SplitPattern pattern = SplitPattern::ofRegex(kByteLevelPattern);
  return [=](std::string_view text, const TakePiece& take) {
    const auto takeAny = [&](std::string_view piece, bool) { take(piece); };
    if (!addsSpace || text.starts_with(' ')) return pattern.split(text, takeAny);
    pattern.split(' ' + std::string(text), takeAny);
  };
}

std::vector<Splitter> splittersOf(const Json& file, bool isByteLevel, const std::string& path) {
  std::vector<Splitter> splitters;
  bool endsWithBytes = false, splitsAsBert = false;
  for (const Json& part : partsOf(file, "pre_tokenizer", "pretokenizers", path)) {
    const std::string type = typeOf(part, path);
    if (endsWithBytes) throwUnsupportedTokenizer(path, "a pre_tokenizer after ByteLevel");
    if (type == "ByteLevel" && isByteLevel) {
      splitters.push_back(byteLevelSplitter(part));
      endsWithBytes = true;
    } else if (type == "BertPreTokenizer" && !isByteLevel) {
      splitters.emplace_back(splitAsBert);
      splitsAsBert = true;
    } else if (type == "Split") {
      splitters.push_back(splitterOfPattern(part, path));
    } else {
      throwUnsupportedTokenizer(path, "the pre_tokenizer " + type);
    }
  }
  if (isByteLevel && !endsWithBytes)
    throwUnsupportedTokenizer(path, "BPE without the pre_tokenizer ByteLevel");
  if (!isByteLevel && !splitsAsBert)
    throwUnsupportedTokenizer(path, "WordPiece without the pre_tokenizer BertPreTokenizer");
  return splitters;
}

// ---- Added tokens ----

struct AddedToken {
  std::string content;
  TokenId id = 0;
  bool takesSpaceBefore = false, takesSpaceBehind = false;
};

// Finds added tokens in text: at each position, the longest one.
class AddedTokens {
 public:
  void add(AddedToken token) {
    auto& sameStart = tokens_[static_cast<unsigned char>(token.content.front())];
    sameStart.push_back(std::move(token));
    std::stable_sort(sameStart.begin(), sameStart.end(), [](const auto& a, const auto& b) {
      return a.content.size() > b.content.size();
    });
    isEmpty_ = false;
  }

  template <typename TakeText, typename TakeToken>
  void split(std::string_view text, const TakeText& takeText, const TakeToken& takeToken) const {
    std::size_t begin = 0;  // start of the text not yet passed to the callback
    for (std::size_t at = 0; !isEmpty_ && at < text.size();) {
      const AddedToken* const token = tokenAt(text.substr(at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      std::size_t from = at, to = at + token->content.size();
      if (token->takesSpaceBefore) from = std::max(begin, spacesBefore(text, from));
      at = to;
      if (token->takesSpaceBehind) to = spacesBehind(text, to);
      if (from > begin) takeText(text.substr(begin, from - begin));
      takeToken(token->id);
      begin = to;
    }
    if (begin < text.size()) takeText(text.substr(begin));
  }

 private:
  const AddedToken* tokenAt(std::string_view text) const {
    for (const AddedToken& token : tokens_[static_cast<unsigned char>(text.front())]) {
      if (text.starts_with(token.content)) return &token;
    }
    return nullptr;
  }

  static std::size_t spacesBefore(std::string_view text, std::size_t at) {
    while (at > 0) {
      std::size_t before = at - 1;
      while (before > 0 && (static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) --before;
      std::size_t position = before;
      if (!isWhitespace(nextCharacter(text, position))) break;
      at = before;
    }
    return at;
  }

  static std::size_t spacesBehind(std::string_view text, std::size_t at) {
    while (at < text.size()) {
      std::size_t position = at;
      if (!isWhitespace(nextCharacter(text, position))) break;
      at = position;
    }
    return at;
  }

  std::array<std::vector<AddedToken>, 256> tokens_;  // by first byte; the longest first
  bool isEmpty_ = true;
};

// ---- Special tokens around the texts ----

struct TemplatePiece {
  enum class Kind : std::uint8_t { first, second, special } kind = Kind::first;
  std::vector<TokenId> ids;  // for a special token
  std::uint8_t type = 0;
};
using SampleTemplate = std::vector<TemplatePiece>;

struct SampleTemplates {
  SampleTemplate single = {{TemplatePiece::Kind::first, {}, 0}};
  SampleTemplate pair = {{TemplatePiece::Kind::first, {}, 0}, {TemplatePiece::Kind::second, {}, 1}};
};

std::uint8_t typeIdOf(const Json& type, const std::string& path) {
  if (!type.is_number_integer() || type < 0 || type > 255)
    throwDamagedTokenizer(path, "a type_id is not valid");
  return type.get<std::uint8_t>();
}

SampleTemplate templateOf(const Json& pieces, const Json& tokens, bool isPair,
                          const std::string& path) {
  SampleTemplate result;
  for (const Json& piece : pieces) {
    if (const auto token = piece.find("SpecialToken"); token != piece.end()) {
      TemplatePiece special{TemplatePiece::Kind::special, {}, typeIdOf(token->at("type_id"), path)};
      for (const Json& id : tokens.at(token->at("id").get<std::string>()).at("ids"))
        special.ids.push_back(readTokenId(id, path));
      result.push_back(std::move(special));
    } else {
      const Json& sequence = piece.at("Sequence");
      const std::string id = sequence.at("id");
      if (id != "A" && id != "B") throwDamagedTokenizer(path, "its template has no text " + id);
      result.push_back({id == "A" ? TemplatePiece::Kind::first : TemplatePiece::Kind::second,
                        {},
                        typeIdOf(sequence.at("type_id"), path)});
    }
  }
  const auto count = [&](TemplatePiece::Kind kind) {
    return std::count_if(result.begin(), result.end(),
                         [&](const TemplatePiece& piece) { return piece.kind == kind; });
  };
  if (count(TemplatePiece::Kind::first) != 1 ||
      count(TemplatePiece::Kind::second) != (isPair ? 1 : 0)) {
    throwUnsupportedTokenizer(path, "a template that does not contain each text exactly once");
  }
  return result;
}

SampleTemplates templatesOf(const Json& file, const std::string& path) {
  using Kind = TemplatePiece::Kind;
  SampleTemplates templates;
  bool isGiven = false;
  for (const Json& part : partsOf(file, "post_processor", "processors", path)) {
    const std::string type = typeOf(part, path);
    if (type == "ByteLevel") continue;  // does not change ids
    if (isGiven) throwUnsupportedTokenizer(path, "two post_processors");
    isGiven = true;
    if (type == "TemplateProcessing") {
      templates.single = templateOf(part.at("single"), part.at("special_tokens"), false, path);
      templates.pair = templateOf(part.at("pair"), part.at("special_tokens"), true, path);
      continue;
    }
    if (type != "BertProcessing" && type != "RobertaProcessing")
      throwUnsupportedTokenizer(path, "the post_processor " + type);
    const bool isBert = type == "BertProcessing";
    const auto special = [&](const char* key, std::uint8_t typeId) {
      return TemplatePiece{Kind::special, {readTokenId(part.at(key).at(1), path)}, typeId};
    };
    const std::uint8_t second = isBert ? 1 : 0;
    templates.single = {special("cls", 0), {Kind::first, {}, 0}, special("sep", 0)};
    templates.pair = templates.single;
    if (!isBert) templates.pair.push_back(special("sep", 0));
    templates.pair.push_back({Kind::second, {}, second});
    templates.pair.push_back(special("sep", second));
  }
  return templates;
}

// ---- Truncation ----

// The number of tokens to keep of each text if there is room for `room` tokens in total. The longer
// text is shortened first.
std::pair<std::size_t, std::size_t> keptTokens(std::size_t first, std::size_t second,
                                               std::size_t room) {
  if (first + second <= room) return {first, second};
  const std::size_t shorter = std::min(first, second);
  std::size_t less = shorter, more = shorter;
  if (shorter <= room) more = std::max(shorter, room - shorter);
  if (less + more > room) {
    less = room / 2;
    more = less + room % 2;
  }
  return first > second ? std::pair(more, less) : std::pair(less, more);
}

}  // namespace

struct Tokenizer::Parts {
  Vocabulary vocabulary;
  std::unique_ptr<TokenModel> model;
  std::vector<Normalizer> normalizers;
  std::vector<Splitter> splitters;
  AddedTokens plain;       // searched in the original text
  AddedTokens normalized;  // searched in the normalized text
  std::map<std::string, TokenId, std::less<>> added;
  SampleTemplates templates;
  bool truncatesLeft = false;
  std::optional<TokenPadding> padding;
  TokenId maxId = 0;

  void read(const Json& file, const std::string& path);
  void readAddedTokens(const Json& file, const std::string& path);
  void readPadding(const Json& file, const std::string& path);

  std::string normalize(std::string_view text) const {
    std::string result(text);
    for (const Normalizer& normalizer : normalizers) result = normalizer(result);
    return result;
  }
  void encodeWords(std::string_view text, std::size_t splitter, std::vector<TokenId>& ids) const {
    if (splitter == splitters.size()) {
      if (!text.empty()) model->encode(text, ids);
      return;
    }
    splitters[splitter](text,
                        [&](std::string_view piece) { encodeWords(piece, splitter + 1, ids); });
  }
  void keep(std::vector<TokenId>& ids, std::size_t count) const {
    if (truncatesLeft && count < ids.size())
      ids.erase(ids.begin(), ids.end() - static_cast<std::ptrdiff_t>(count));
    ids.resize(std::min(ids.size(), count));
  }
};

void Tokenizer::Parts::read(const Json& file, const std::string& path) {
  if (!file.is_object() || !file.contains("model") || !file["model"].is_object())
    throwDamagedTokenizer(path, "it has no model");
  const Json& given = file["model"];
  // Old files do not name the model.
  const std::string type = given.contains("type")     ? typeOf(given, path)
                           : given.contains("merges") ? "BPE"
                                                      : "WordPiece";
  if (type != "BPE" && type != "WordPiece") throwUnsupportedTokenizer(path, "the model " + type);
  vocabulary = readVocabulary(given, path);
  for (const Json& part : partsOf(file, "normalizer", "normalizers", path))
    normalizers.push_back(normalizerOf(part, path));
  splitters = splittersOf(file, type == "BPE", path);
  model =
      type == "BPE" ? makeByteBpe(given, vocabulary, path) : makeWordPiece(given, vocabulary, path);
  for (const auto& [token, id] : vocabulary) maxId = std::max(maxId, id);
  readAddedTokens(file, path);
  templates = templatesOf(file, path);
  for (const SampleTemplate* each : {&templates.single, &templates.pair}) {
    for (const TemplatePiece& piece : *each)
      for (const TokenId id : piece.ids) maxId = std::max(maxId, id);
  }
  const auto direction = [&](const char* key) {
    const auto part = file.find(key);
    return part != file.end() && part->is_object() && part->value("direction", "") == "Left";
  };
  truncatesLeft = direction("truncation");
  readPadding(file, path);
}

void Tokenizer::Parts::readAddedTokens(const Json& file, const std::string& path) {
  constexpr std::size_t kMaxAdded = 1 << 16;
  const auto tokens = file.find("added_tokens");
  if (tokens == file.end() || tokens->is_null()) return;
  if (!tokens->is_array() || tokens->size() > kMaxAdded)
    throwDamagedTokenizer(path, "its added_tokens are not a list of at most 65536");
  for (const Json& token : *tokens) {
    AddedToken each;
    each.content = token.at("content");
    each.id = readTokenId(token.at("id"), path);
    each.takesSpaceBefore = token.value("lstrip", false);
    each.takesSpaceBehind = token.value("rstrip", false);
    if (each.content.empty()) continue;
    const auto known = vocabulary.find(each.content);
    if (known != vocabulary.end() && known->second != each.id) {
      throwDamagedTokenizer(path, "the id of the added token '" + printable(each.content, 100) +
                                      "' differs from its id in the vocabulary");
    }
    if (token.value("single_word", false))
      throwUnsupportedTokenizer(path, "an added token with single_word");
    added[each.content] = each.id;
    maxId = std::max(maxId, each.id);
    if (!token.value("normalized", !token.value("special", false))) {
      plain.add(std::move(each));
      continue;
    }
    each.content = normalize(each.content);
    if (!each.content.empty()) normalized.add(std::move(each));
  }
}

void Tokenizer::Parts::readPadding(const Json& file, const std::string& path) {
  const auto given = file.find("padding");
  if (given != file.end() && given->is_object()) {
    const auto type = given->find("pad_type_id");
    padding = TokenPadding{readTokenId(given->at("pad_id"), path),
                           type == given->end() ? std::uint8_t{0} : typeIdOf(*type, path),
                           given->value("direction", "Right") == "Left"};
    if (padding->id > maxId)
      throwDamagedTokenizer(path, "its padding id is larger than all token ids");
    return;
  }
  for (const char* name : {"[PAD]", "<pad>", "<|pad|>", "<|endoftext|>"}) {
    if (const auto found = added.find(name); found != added.end()) {
      padding = TokenPadding{found->second, 0, false};
      return;
    }
  }
}

Tokenizer::Tokenizer(const std::string& path)
    : Tokenizer(
          [&] {
            const std::vector<std::uint8_t> bytes =
                readUnpacked(path, kMaxTokenizerBytes, Needs::eightTimes);
            return std::string(bytes.begin(), bytes.end());
          }(),
          path) {}

Tokenizer::Tokenizer(std::string_view json, const std::string& path) {
  auto parts = std::make_unique<Parts>();
  try {
    parts->read(Json::parse(json), path);
  } catch (const Json::exception& error) {
    throwDamagedTokenizer(path, printable(error.what(), 200));
  }
  parts_ = std::move(parts);
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

void Tokenizer::encode(std::string_view text, std::vector<TokenId>& ids) const {
  const Parts& parts = *parts_;
  const std::string replaced = isUtf8(text) ? std::string() : replaceInvalidUtf8(text);
  if (!replaced.empty()) text = replaced;
  const auto takeToken = [&](TokenId id) { ids.push_back(id); };
  const auto takeNormalized = [&](std::string_view piece) { parts.encodeWords(piece, 0, ids); };
  const auto takePlain = [&](std::string_view piece) {
    const std::string normal = parts.normalizers.empty() ? std::string() : parts.normalize(piece);
    parts.normalized.split(parts.normalizers.empty() ? piece : normal, takeNormalized, takeToken);
  };
  parts.plain.split(text, takePlain, takeToken);
}

Tokens Tokenizer::encodeSample(std::string_view text, const std::optional<std::string_view>& second,
                               std::size_t length) const {
  std::vector<TokenId> texts[2];
  encode(text, texts[0]);
  if (second) encode(*second, texts[1]);
  const std::size_t room = length - specialTokens(second.has_value());
  const auto [first, other] =
      second ? keptTokens(texts[0].size(), texts[1].size(), room) : std::pair{room, std::size_t{0}};
  parts_->keep(texts[0], first);
  parts_->keep(texts[1], other);
  Tokens tokens;
  for (const TemplatePiece& piece : second ? parts_->templates.pair : parts_->templates.single) {
    const bool isSpecial = piece.kind == TemplatePiece::Kind::special;
    const std::vector<TokenId>& ids =
        isSpecial ? piece.ids : texts[piece.kind == TemplatePiece::Kind::second ? 1 : 0];
    tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
    tokens.types.resize(tokens.ids.size(), piece.type);
  }
  return tokens;
}

std::size_t Tokenizer::specialTokens(bool isPair) const {
  std::size_t count = 0;
  for (const TemplatePiece& piece : isPair ? parts_->templates.pair : parts_->templates.single)
    count += piece.ids.size();
  return count;
}

std::optional<TokenPadding> Tokenizer::padding() const { return parts_->padding; }

std::optional<TokenId> Tokenizer::idOf(std::string_view token) const {
  if (const auto found = parts_->added.find(token); found != parts_->added.end())
    return found->second;
  if (const auto found = parts_->vocabulary.find(token); found != parts_->vocabulary.end())
    return found->second;
  return std::nullopt;
}

TokenId Tokenizer::maxId() const { return parts_->maxId; }

}  // namespace cleave
