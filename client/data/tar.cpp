// The data format `tar`: WebDataset shards. Consecutive members with the same name up to the first
// dot form a sample: KEY.jpg (.jpeg, .png, .webp) and KEY.cls, a text with the class. Members with
// other extensions are ignored. The archives are read once to index their members. Samples are then
// read at the indexed positions; no archive stays open.
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "client/data/encoded_images.h"
#include "client/data/image_file.h"
#include "client/data/image_formats.h"
#include "common/core/open_file.h"
#include "common/core/printable.h"

namespace cleave {
namespace {

constexpr std::uint64_t kMaxMemberBytes = std::uint64_t{1} << 30;

struct Member {
  std::uint32_t shard = 0;
  std::uint64_t offset = 0, size = 0;
};

struct ShardSample {
  std::string key;
  std::optional<Member> image, label;
  std::string imageName;  // the member's name
};

[[noreturn]] void refuseTar(const std::string& path, const std::string& fault,
                            const std::string& hint = "copy or write the file again") {
  throw UsageError("data-damaged", path + " " + fault, hint);
}

// Throws if the file is missing, compressed or empty.
void checkIsPlainTar(const std::string& path) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char first[262] = {};
  const ssize_t got = file ? ::read(file.get(), first, sizeof first) : -1;
  if (got < 0) {
    throw UsageError("data-missing", path + " cannot be read: " + std::strerror(errno),
                     "check the path of the data in the configuration");
  }
  if (got == 0) throw UsageError("data-empty", path + " is empty", "copy or write the file again");
  const std::string_view bytes(first, static_cast<std::size_t>(got));
  constexpr std::size_t kMagicAt = 257;
  if (bytes.size() > kMagicAt && bytes.substr(kMagicAt).starts_with("ustar")) return;
  const std::pair<std::string_view, const char*> kCompressions[] = {{"\x1F\x8B", "gunzip"},
                                                                    {"BZh", "bunzip2"},
                                                                    {"\xFD"
                                                                     "7zXZ",
                                                                     "unxz"},
                                                                    {"\x28\xB5\x2F\xFD", "unzstd"},
                                                                    {"\x04\x22\x4D\x18", "unlz4"}};
  for (const auto& [magic, program] : kCompressions) {
    if (!bytes.starts_with(magic)) continue;
    refuseTar(path, "is compressed, but samples are read in random order",
              fmt::format("unpack it first: {} {}", program, path));
  }
}

struct ArchiveCloser {
  void operator()(archive* open) const { archive_read_free(open); }
};

// Calls visit(name, member) for each regular file in the archive.
template <typename Visit>
void visitMembers(const std::string& path, std::uint32_t shard, Visit visit) {
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  checkIsPlainTar(path);
  const std::unique_ptr<archive, ArchiveCloser> tar(archive_read_new());
  archive_read_support_format_tar(tar.get());
  if (archive_read_open_filename(tar.get(), path.c_str(), kBlock) != ARCHIVE_OK) {
    refuseTar(path, std::string("cannot be read as tar: ") + archive_error_string(tar.get()));
  }
  archive_entry* entry = nullptr;
  for (;;) {
    const int result = archive_read_next_header(tar.get(), &entry);
    if (result == ARCHIVE_EOF) return;
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) {
      refuseTar(path, std::string("cannot be read as tar: ") + archive_error_string(tar.get()));
    }
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr || archive_entry_filetype(entry) != AE_IFREG) continue;
    const auto size = static_cast<std::uint64_t>(archive_entry_size(entry));
    if (archive_entry_sparse_count(entry) > 0 || size > kMaxMemberBytes) {
      refuseTar(path, fmt::format("has a member, {}, that is sparse or larger than 1 GiB",
                                  printable(name)));
    }
    // The header has been read, so the member's content begins here.
    visit(std::string(name),
          Member{shard, static_cast<std::uint64_t>(archive_filter_bytes(tar.get(), 0)), size});
  }
}

std::vector<std::byte> readMember(const std::string& path, const Member& member,
                                  const std::string& name) {
  const auto fail = [&](const std::string& why) {
    throwDamagedImage(name, "cannot be read: " + why);
  };
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) fail(std::strerror(errno));
  std::vector<std::byte> bytes(member.size);
  std::size_t taken = 0;
  while (taken < bytes.size()) {
    const ssize_t got = ::pread(file.get(), bytes.data() + taken, bytes.size() - taken,
                                static_cast<off_t>(member.offset + taken));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(std::strerror(errno));
    if (got == 0) fail("the archive has shrunk");
    taken += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::vector<std::string> shardsOf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {path};
  std::vector<std::string> shards;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with('.') && name.ends_with(".tar")) shards.push_back(entry.path());
  }
  if (shards.empty()) {
    throw UsageError(
        "data-missing",
        path + (error ? " cannot be read: " + error.message() : std::string(" has no .tar files")),
        "give a .tar file, or a folder of them");
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

// Reads the class from a .cls member.
std::string readLabel(const std::string& shard, const ShardSample& sample) {
  constexpr std::size_t kMaxBytes = 1024;
  const std::string name = fmt::format("{}: {}.cls", shard, printable(sample.key));
  if (sample.label->size > kMaxBytes)
    refuseTar(name, "has more than 1024 bytes, too many for a label");
  const std::vector<std::byte> bytes = readMember(shard, *sample.label, name);
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto isSpace = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && isSpace(text.back())) text.pop_back();
  while (!text.empty() && isSpace(text.front())) text.erase(0, 1);
  return text;
}

std::vector<ShardSample> readIndex(const std::vector<std::string>& shards) {
  std::vector<ShardSample> samples;
  const auto checkLast = [&](const std::string& shard) {
    if (samples.empty()) return;
    const ShardSample& last = samples.back();
    if (!last.image && !last.label) {
      samples.pop_back();  // it has only ignored members
      return;
    }
    if (last.image && last.label) return;
    refuseTar(shard,
              fmt::format("has a sample, {}, without {}", printable(last.key),
                          last.image ? "a .cls member" : "an image"),
              "write the members of a sample one after another: KEY.jpg and KEY.cls");
  };
  for (std::uint32_t s = 0; s < shards.size(); ++s) {
    const std::size_t before = samples.size();
    visitMembers(shards[s], s, [&](const std::string& name, const Member& member) {
      const std::size_t file = name.rfind('/') + 1;  // 0 if there is no slash
      if (name[file] == '.') return;                 // hidden
      const std::size_t dot = std::min(name.find('.', file), name.size());
      const std::string key = name.substr(0, dot);
      if (samples.size() == before || samples.back().key != key) {
        if (samples.size() > before) checkLast(shards[s]);
        samples.push_back({key, {}, {}, {}});
      }
      ShardSample& sample = samples.back();
      const bool isImage = hasImageExtension(name);
      if (!isImage && name.substr(dot) != ".cls") return;
      std::optional<Member>& place = isImage ? sample.image : sample.label;
      if (place) {
        refuseTar(shards[s],
                  fmt::format("has two {} for {}", isImage ? "images" : "labels", printable(key)),
                  "give each sample a unique key");
      }
      place = member;
      if (isImage) sample.imageName = name;
    });
    if (samples.size() > before) checkLast(shards[s]);
  }
  return samples;
}

}  // namespace

DataFormatTable makeTarKeys() {
  DataFormatTable table;
  table.requiredText("data.train.file", "path", &DataFormatKeys::trainFile,
                     "a WebDataset .tar file, or a folder of them: members KEY.jpg and KEY.cls");
  table.text("data.test.file", "path", &DataFormatKeys::testFile,
             "the same for the test set; not needed with `data.holdout`");
  addEncodedImageKeys(table);
  return table;
}

std::unique_ptr<Dataset> openTar(const DataFormatKeys& keys, DataSplit split) {
  if (split == DataSplit::input) return openInputImages(keys);
  const bool isTraining = split == DataSplit::train;
  const std::string& path = isTraining ? keys.trainFile : keys.testFile;
  if (path.empty()) throwNoTestSet("data.test.file");
  const std::vector<std::string> shards = shardsOf(path);
  const std::vector<ShardSample> samples = readIndex(shards);
  if (samples.empty()) {
    throw UsageError("data-empty", path + " has no samples",
                     "write members KEY.jpg and KEY.cls for each sample");
  }
  std::vector<std::string> texts;
  for (const ShardSample& sample : samples) {
    texts.push_back(readLabel(shards[sample.image->shard], sample));
  }
  const ClassTable classes =
      tabulateClasses({texts.begin(), texts.end()}, keys, split, ClassOrder::byNumber, path);

  EncodedImages images;
  images.classNames = classes.names;
  std::vector<Member> members;
  for (std::size_t n = 0; n < samples.size(); ++n) {
    images.names.push_back(shards[samples[n].image->shard] + ": " + samples[n].imageName);
    images.labels.push_back(classes.numbers.find(texts[n])->second);
    members.push_back(*samples[n].image);
  }
  images.read = [shards, members, names = images.names](std::uint32_t index) {
    const Member& member = members[index];
    return readMember(shards[member.shard], member, names[index]);
  };
  if (isTraining && !keys.needsTest) shuffleForHoldout(images);
  return makeEncodedImages(std::move(images), keys);
}

}  // namespace cleave
