// The server's store of initial weights: which weights are kept and for how long, including damaged
// files and a failing disk.
#include "server/store/weights_store.h"

#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/thread_pool.hpp>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "client/run/temporary_folder.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/core/bytes.h"
#include "common/core/durable.h"
#include "common/files/sha256.h"
#include "server/store/run_weights.h"
#include "tests/support/error_code.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBytes = 100'000;  // size of the weights in these tests
constexpr std::size_t kShare = 100 * kBytes;

std::string weightsOf(char fill) { return std::string(kBytes, fill); }

// Real files, but the n-th change fails with this error, or reading fails.
class FailingFiles : public Files {
 public:
  std::optional<std::string> read(const std::string& path) override {
    return diskFiles().read(path);
  }
  bool readAt(const std::string& path, std::uint64_t offset, std::span<std::byte> into) override {
    if (failReads) throw RunError("run-unreadable", path);
    return diskFiles().readAt(path, offset, into);
  }
  void touch(const std::string& path) override { diskFiles().touch(path); }
  std::int64_t changeTime(const std::string& path) override { return diskFiles().changeTime(path); }
  std::optional<HeldBytes> view(const std::string& path) override { return diskFiles().view(path); }
  void writePieces(const std::string& path, std::span<const std::string_view> pieces) override {
    change(path);
    diskFiles().writePieces(path, pieces);
  }
  void remove(const std::string& path) override {
    if (diskFiles().size(path) > 0) change(path);
    diskFiles().remove(path);
  }
  std::uint64_t size(const std::string& path) override { return diskFiles().size(path); }
  std::vector<std::string> list(const std::string& folder) override {
    return diskFiles().list(folder);
  }
  void makeFolder(const std::string& folder) override {
    change(folder);
    diskFiles().makeFolder(folder);
  }

  int left = 0;  // the change that fails, counted from 1; 0: no change fails
  int error = ENOSPC;
  bool failReads = false;

 private:
  void change(const std::string& path) {
    if (left > 0 && --left == 0) throwCannotWrite(path, "cannot be written", error);
  }
};

// A store in a temporary folder, and the share of the identity "a".
class Fixture {
 public:
  explicit Fixture(std::size_t maxBytes = 3 * kBytes) {
    store.emplace(files, folder_, maxBytes);
    share.setMax(kShare);
  }

  std::string keep(char fill, const std::string& identity = "a") {
    const std::string weights = weightsOf(fill);
    const std::string code =
        errorCode([&] { store->keep(identity, sha256Of(weights), weights, share); });
    setTime(fill, ++time_);
    return code;
  }
  std::shared_ptr<const StoredWeights> find(char fill, const std::string& identity = "a") {
    return store->find(identity, sha256Of(weightsOf(fill)), kBytes);
  }
  // Keeps weights without using them.
  bool has(char fill) { return fs::exists(pathOf(fill)); }
  // Reads the weights. Returns the code of the error; empty if the weights equal the kept ones.
  std::string read(const StoredWeights& stored, char fill) {
    std::vector<std::byte> bytes(stored.bytes);
    return errorCode([&] {
      const bool isWhole = store->read(stored, bytes, cancelled, share);
      CHECK(isWhole);
      CHECK(std::all_of(bytes.begin(), bytes.end(),
                        [&](std::byte each) { return each == static_cast<std::byte>(fill); }));
    });
  }
  std::size_t used() const { return static_cast<std::size_t>(share.usedBytes()); }
  std::string folder() const { return folder_ + "/a/.weights"; }
  std::string pathOf(char fill) const {
    return folder() + "/" + hexOf(sha256Of(weightsOf(fill))) + ".safetensors";
  }
  // Sets times in seconds, because two changes may otherwise get the same time on the file system.
  void setTime(char fill, int time) {
    std::error_code none;
    fs::last_write_time(
        pathOf(fill),
        fs::file_time_type::clock::now() - std::chrono::hours(1) + std::chrono::seconds(time),
        none);
  }

  FailingFiles files;
  const std::shared_ptr<DiskRoom> room = std::make_shared<DiskRoom>(std::int64_t{1} << 40);
  DiskShare share{"a", 0, room};
  std::optional<WeightsStore> store;
  std::atomic<bool> cancelled = false;

 private:
  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  int time_ = 0;
};

TEST_CASE("weights are found by their digest, and only by the identity that sent them") {
  Fixture test;
  CHECK_FALSE(test.find('x'));
  CHECK(test.keep('x').empty());
  const auto found = test.find('x');
  REQUIRE(found);
  CHECK(found->bytes == kBytes);
  CHECK(test.read(*found, 'x').empty());
  CHECK_FALSE(test.find('y'));
  CHECK_FALSE(test.find('x', "b"));
  CHECK(test.used() == kBytes);

  // Keeping the weights again changes nothing.
  CHECK(test.keep('x').empty());
  CHECK(test.used() == kBytes);
}

TEST_CASE("stored weights that are larger than the run's weights are not used") {
  Fixture test;
  test.keep('x');
  CHECK_FALSE(test.store->find("a", sha256Of(weightsOf('x')), kBytes - 1));
  CHECK(test.store->find("a", sha256Of(weightsOf('x')), kBytes));
}

TEST_CASE("the least recently used weights are removed to make room") {
  Fixture test;
  for (const char fill : {'x', 'y', 'z'}) CHECK(test.keep(fill).empty());
  CHECK(test.find('x'));  // these weights are now the most recently used
  CHECK(test.keep('u').empty());
  CHECK(test.has('x'));
  CHECK_FALSE(test.has('y'));
  CHECK(test.has('z'));
  CHECK(test.used() == 3 * kBytes);
}

TEST_CASE("weights that a run uses are not removed") {
  Fixture test(2 * kBytes);
  test.keep('x');
  test.keep('y');
  auto oldest = test.find('x');
  test.setTime('x', 0);
  CHECK(test.keep('z').empty());
  CHECK(test.has('x'));
  CHECK_FALSE(test.has('y'));

  const auto second = test.find('x');  // used by another run
  const auto other = test.find('z');
  oldest.reset();
  CHECK(test.keep('y') == "weights-too-large");
  CHECK(test.has('x'));
  CHECK(test.used() == 2 * kBytes);
}

TEST_CASE("weights beyond the limit are not kept, and with a limit of 0 no weights are used") {
  Fixture test(kBytes - 1);
  CHECK(test.keep('x') == "weights-too-large");
  CHECK_FALSE(fs::exists(test.folder()));
  CHECK(test.used() == 0);

  Fixture enough;
  enough.keep('x');
  enough.store.emplace(enough.files, fs::path(enough.folder()).parent_path().parent_path(), 0);
  CHECK_FALSE(enough.store->isEnabled());
  CHECK_FALSE(enough.find('x'));
}

TEST_CASE("weights are not kept if the identity's share or the server's reserve has no room") {
  Fixture test;
  test.share.setMax(2 * kBytes - 1);
  CHECK(test.keep('x') == "weights-too-large");  // half of the share is for records
  test.share.setMax(3 * kBytes);
  REQUIRE(test.share.take(2 * kBytes + kBytes / 2));
  CHECK(test.keep('y') == "disk-share-full");
  CHECK(test.used() == 2 * kBytes + kBytes / 2);
  test.share.setMax(kShare);
  *test.room = kBytes;
  CHECK(test.keep('y') == "disk-reserve");
  CHECK_FALSE(test.has('y'));
}

TEST_CASE("damaged weights are reported and removed") {
  const auto damage = [](const std::string& path, const std::string& how) {
    std::string content = diskFiles().read(path).value();
    if (how == "flipped") content[kBytes / 2] ^= 1;
    if (how == "truncated") content.pop_back();
    if (how == "missing") return diskFiles().remove(path);
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  };
  for (const std::string how : {"flipped", "truncated", "missing"}) {
    CAPTURE(how);
    Fixture test;
    test.keep('x');
    const auto stored = test.find('x');
    damage(test.pathOf('x'), how);
    CHECK(test.read(*stored, 'x') == "weights-damaged");
    CHECK_FALSE(test.find('x'));
    CHECK(test.keep('x').empty());
    CHECK(test.read(*test.find('x'), 'x').empty());
  }
}

TEST_CASE("weights that the disk cannot read are damaged") {
  Fixture test;
  test.keep('x');
  const auto stored = test.find('x');
  test.files.failReads = true;
  CHECK(test.read(*stored, 'x') == "weights-damaged");
  CHECK_FALSE(test.has('x'));
  CHECK(test.used() == 0);
}

TEST_CASE("reading can be cancelled") {
  Fixture test;
  test.keep('x');
  test.cancelled = true;
  std::vector<std::byte> bytes(kBytes);
  CHECK_FALSE(test.store->read(*test.find('x'), bytes, test.cancelled, test.share));
  CHECK(test.has('x'));
}

TEST_CASE("a failing disk leaves nothing behind, and no bytes counted") {
  for (const int error : {ENOSPC, EIO}) {
    for (int change = 1; change <= 3; ++change) {  // changes: a removal, the folder, and the write
      CAPTURE(error, change);
      Fixture test(kBytes);
      test.keep('x');
      test.files.error = error;
      test.files.left = change;
      CHECK(test.keep('y') == "cannot-write");
      CHECK_FALSE(test.has('y'));
      CHECK(test.used() == (test.has('x') ? kBytes : 0));
      test.files.left = 0;
      CHECK(test.keep('y').empty());
      CHECK(test.read(*test.find('y'), 'y').empty());
    }
  }
}

TEST_CASE("the remains of a killed write are removed with the next one") {
  Fixture test;
  test.keep('x');
  const std::string remains = test.pathOf('y') + ".tmp-17-0";
  std::ofstream(remains) << weightsOf('y');
  REQUIRE(test.share.take(kBytes));  // the remains were counted when the server started
  CHECK_FALSE(test.find('y'));
  CHECK(test.keep('y').empty());
  CHECK_FALSE(fs::exists(remains));
  CHECK(test.used() == 2 * kBytes);
}

// ---- The weights of a run ----

// The weights of a run, as created by RunStore, with threads for reading and writing.
class RunOf {
 public:
  RunOf(Fixture& test, char fill) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_);
    weights = std::make_shared<RunWeights>(RunWeights::Context{
        .store = std::shared_ptr<WeightsStore>(std::shared_ptr<void>(), &*test.store),
        .identity = "a",
        .sha256 = sha256Of(weightsOf(fill)),
        .stored = test.find(fill),
        .disk = std::shared_ptr<DiskShare>(std::shared_ptr<void>(), &test.share),
        .log = std::make_shared<spdlog::logger>("run", std::move(sink)),
        .reading = threads_.get_executor(),
        .writing = threads_.get_executor()});
  }
  // Simulates weights that have arrived from a client.
  Blob arrived(char fill) {
    Buffer buffer = pool->acquire(kBytes);
    std::memset(buffer.data(), fill, kBytes);
    auto owner = std::make_shared<const Buffer>(std::move(buffer));
    Blob blob;
    blob.bytes = owner->span();
    blob.owner = std::move(owner);
    return blob;
  }
  // Returns the text that was loaded, or the code of the error.
  std::string load() {
    const auto result = std::make_shared<std::promise<std::string>>();
    weights->load(
        pool, [result](const Blob& blob) { result->set_value(std::string(textOf(blob.bytes))); },
        [result](std::exception_ptr error) {
          result->set_value(errorCode([&] { std::rethrow_exception(error); }));
        });
    return result->get_future().get();
  }
  std::string finish() {
    threads_.join();
    CHECK_FALSE(weights->isBusy());
    CHECK(account->used() == 0);
    return log_.str();
  }

  const std::shared_ptr<MemoryAccount> account = std::make_shared<MemoryAccount>(4 * kBytes);
  const std::shared_ptr<BufferPool> pool = BufferPool().chargedTo(account);
  std::shared_ptr<RunWeights> weights;

 private:
  std::ostringstream log_;
  boost::asio::thread_pool threads_{1};
};

TEST_CASE("a run keeps the weights that it has received, and the next one loads them") {
  Fixture test;
  RunOf first(test, 'x');
  CHECK_FALSE(first.weights->areStored());
  first.weights->keep(first.arrived('x'));
  CHECK_THAT(first.finish(), Catch::Contains("are kept for other runs"));

  RunOf second(test, 'x');
  REQUIRE(second.weights->areStored());
  CHECK(second.load() == weightsOf('x'));
  second.finish();
}

TEST_CASE("weights that cannot be kept are reported in one line of the run's log") {
  Fixture test;
  test.files.left = 1;
  RunOf run(test, 'x');
  run.weights->keep(run.arrived('x'));
  const std::string log = run.finish();
  CHECK_THAT(log, Catch::Contains("are not kept for other runs"));
  CHECK(std::count(log.begin(), log.end(), '\n') == 1);
}

TEST_CASE("stored weights are charged to the run's account, and damage ends the run") {
  Fixture test;
  test.keep('x');
  RunOf large(test, 'x');
  const MemoryCharge rest(large.account, 4 * kBytes - 1);
  CHECK(large.load() == "memory-exceeded");
  CHECK(large.account->used() == 4 * kBytes - 1);

  RunOf damaged(test, 'x');
  diskFiles().remove(test.pathOf('x'));
  CHECK(damaged.load() == "weights-damaged");
  damaged.finish();
}

TEST_CASE("loading that was cancelled has no result") {
  Fixture test;
  test.keep('x');
  RunOf run(test, 'x');
  run.weights->cancel();
  std::atomic<int> results = 0;
  run.weights->load(
      run.pool, [&](const Blob&) { ++results; }, [&](const std::exception_ptr&) { ++results; });
  run.finish();
  CHECK(results == 0);
}

}  // namespace
}  // namespace cleave
