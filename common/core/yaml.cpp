#include "common/core/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

namespace cleave {
namespace {

bool isLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Builds the tree from the parser's events. yaml-cpp's own Node would accept duplicate keys, keep
// line numbers for values but not for keys, and follow aliases.
class TreeBuilder final : public YAML::EventHandler {
 public:
  // Without `lines`, every node's place is `name` itself.
  TreeBuilder(std::string name, bool lines) : name_(std::move(name)), lines_(lines) {}

  YamlNode takeRoot() { return std::move(root_); }

  std::string place(const YAML::Mark& mark) const {
    return lines_ ? name_ + ":" + std::to_string(mark.line + 1) : name_;
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuseReferences(mark, anchor, "?");
    refuseAsKey(mark);
    attach({}, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuseReferences(mark, anchor, "?");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuseReferences(mark, anchor, tag);
    if (awaitsKey()) return takeKey(mark, value);
    YamlNode node;
    node.kind = YamlNode::Kind::scalar;
    node.text = value;
    node.quoted = tag == "!";
    attach(std::move(node), mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::list, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::map, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  // A map or list that has not ended yet.
  struct Open {
    YamlNode node;
    YAML::Mark mark;
    bool hasKey = false;  // a key of the map has been read, its value has not
    std::string key;
    YAML::Mark keyMark;
    std::set<std::string> keys;
  };

  bool awaitsKey() const {
    return !open_.empty() && open_.back().node.kind == YamlNode::Kind::map && !open_.back().hasKey;
  }

  void takeKey(const YAML::Mark& mark, const std::string& key) {
    Open& map = open_.back();
    if (key.empty() || key.find('.') != std::string::npos) {
      throw UsageError(
          "config-syntax",
          place(mark) + ": the key " + quotedForError(key) + " is empty or contains a dot",
          "nest maps instead: 'train.batch: 64' is written 'train: {batch: 64}'");
    }
    if (!map.keys.insert(key).second) {
      throw UsageError("config-syntax",
                       place(mark) + ": " + quotedForError(key) +
                           " appears twice in the same map, first at " + map.node.child(key)->place,
                       "remove one of the two");
    }
    map.hasKey = true;
    map.key = key;
    map.keyMark = mark;
  }

  void attach(YamlNode node, const YAML::Mark& mark) {
    node.place = place(mark);
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.hasKey) {  // a value's place is that of its key, even if the value begins on a later
                          // line
      node.place = place(parent.keyMark);
      node.key = std::move(parent.key);
      parent.hasKey = false;
    }
    parent.node.children.push_back(std::move(node));
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    refuseReferences(mark, anchor, tag);
    refuseAsKey(mark);
    if (open_.size() == kMaxYamlDepth) {
      throw UsageError(
          "config-syntax",
          place(mark) + ": nested deeper than " + std::to_string(kMaxYamlDepth) + " levels",
          "look for an extra indentation or bracket; no setting needs that depth");
    }
    Open opened;
    opened.node.kind = kind;
    opened.mark = mark;
    open_.push_back(std::move(opened));
  }

  void close() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    attach(std::move(closed.node), closed.mark);
  }

  void refuseAsKey(const YAML::Mark& mark) const {
    if (!awaitsKey()) return;
    throw UsageError(
        "config-syntax", place(mark) + ": a key must be plain text",
        "write 'key: value', quote a key that YAML reads as something else, and close brackets");
  }

  void refuseReferences(const YAML::Mark& mark, YAML::anchor_t anchor,
                        const std::string& tag) const {
    if (anchor != YAML::NullAnchor) {
      throw UsageError("config-syntax", place(mark) + ": anchors and aliases are not supported",
                       "write the value out; quote text that begins with & or *");
    }
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw UsageError("config-syntax",
                       place(mark) + ": tags such as " + quotedForError(tag) + " are not supported",
                       "remove the tag; quote the value if it is text");
    }
  }

  const std::string name_;
  const bool lines_;
  std::vector<Open> open_;
  YamlNode root_;
};

[[noreturn]] void throwSyntax(const std::string& place, const std::string& problem) {
  throw UsageError(
      "config-syntax", place + ": not valid YAML: " + problem,
      "indent with spaces, close quotes and brackets, and quote text that contains ': ' or ' #'");
}

// The number of the first line up to `last` that is indented with a tab, from 1; 0: none.
int lineWithTab(std::string_view text, int last) {
  for (int line = 1; line <= last && !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view indent = text.substr(0, std::min(text.find_first_not_of(" \t"), end));
    if (indent.find('\t') != std::string_view::npos) return line;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return 0;
}

YamlNode parse(std::string_view text, const std::string& name, bool lines) {
  if (text.size() > kMaxYamlBytes) {
    throw UsageError("config-syntax", name + ": larger than 1 MiB",
                     "check the path; a configuration has a few kB");
  }
  // The appended comment has no effect, except that yaml-cpp then reports an unclosed quote: if the
  // text ended in a line break, it would accept the rest of the file as the quoted text.
  std::string guarded(text);
  guarded += text.ends_with('\n') ? "#" : "\n#";
  std::istringstream stream(guarded);
  TreeBuilder builder(name, lines);
  try {
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      YamlNode root = builder.takeRoot();
      if (parser.HandleNextDocument(builder)) throwSyntax(name, "more than one document");
      return root;
    }
  } catch (const YAML::Exception& error) {
    const int tab = lines ? lineWithTab(text, error.mark.line + 1) : 0;
    if (tab > 0) {
      throw UsageError("config-syntax",
                       name + ":" + std::to_string(tab) +
                           ": the line is indented with a tab, which YAML does not allow",
                       "indent with spaces: in this file, replace each tab by two spaces");
    }
    const std::string column = lines ? ":" + std::to_string(error.mark.column + 1) : "";
    throwSyntax(builder.place(error.mark) + column, error.msg);
  }
  return builder.takeRoot();  // an empty file
}

// Words that some YAML parsers read as null or a boolean.
bool isReserved(std::string_view text) {
  static constexpr std::array<std::string_view, 9> kWords = {"null", "true", "false", "yes", "no",
                                                             "on",   "off",  "y",     "n"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return std::find(kWords.begin(), kWords.end(), lower) != kWords.end();
}

// Stricter than YAML's rule for plain scalars: all parsers agree on these texts.
bool isPlain(std::string_view text) {
  if (text.empty() || !(isLetter(text[0]) || text[0] == '_' || text[0] == '/')) return false;
  if (text.back() == ':' || isReserved(text)) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return isLetter(c) || isDigit(c) ||
           std::string_view("_-./:=()+").find(c) != std::string_view::npos;
  });
}

}  // namespace

const YamlNode* YamlNode::child(std::string_view name) const {
  for (const YamlNode& node : children) {
    if (kind == Kind::map && node.key == name) return &node;
  }
  return nullptr;
}

YamlNode* YamlNode::child(std::string_view name) {
  return const_cast<YamlNode*>(std::as_const(*this).child(name));
}

YamlNode parseYaml(std::string_view text, const std::string& name) {
  return parse(text, name, true);
}

YamlNode parseYamlValue(std::string_view text, const std::string& place) {
  return parse(text, place, false);
}

std::string yamlText(std::string_view text) {
  if (isPlain(text)) return std::string(text);
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (isControl(c)) {
      quoted += {'\\', 'x', kHex[static_cast<unsigned char>(c) / 16], kHex[c % 16]};
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string yamlNumber(double value) {
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  std::array<char, 32> digits;
  std::string text(digits.data(), std::to_chars(digits.begin(), digits.end(), value).ptr);
  // YAML 1.1 readers such as PyYAML parse numbers without a point as integers, and 1e-05 as text.
  if (text.find('.') == std::string::npos) text.insert(std::min(text.find('e'), text.size()), ".0");
  return text;
}

std::string quotedForError(std::string_view text) {
  constexpr std::size_t kMax = 60;
  std::string shown(text.substr(0, kMax));
  if (text.size() > kMax) {
    // Do not cut inside a UTF-8 character: drop its continuation bytes and its first byte.
    while (!shown.empty() && (shown.back() & 0xc0) == 0x80) shown.pop_back();
    if (!shown.empty()) shown.pop_back();
    shown += "…";
  }
  std::replace_if(shown.begin(), shown.end(), isControl, '?');
  return "'" + shown + "'";
}

}  // namespace cleave
