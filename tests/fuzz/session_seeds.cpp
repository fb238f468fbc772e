// Seeds: complete steps and evaluations of a correct peer, and some simple faults.
#include "tests/fuzz/session_input.h"

namespace cleave::fuzz {
namespace {

constexpr std::uint8_t kEval = 0x10;  // a bit in a key's first byte, which also has the flow

class Writer {
 public:
  explicit Writer(std::uint8_t flags) { put({flags}); }

  // A tensor of 2 samples with 16 values each; the batch has 8 samples in 4 micro-batches.
  Writer& tensor(std::uint8_t flow, std::uint8_t step, std::uint8_t i, std::uint8_t choice = 0) {
    const std::uint8_t payload = (flags() & kCoded) != 0 ? 37 : 128;
    return command(Command::tensor, {++stream_, flow, step, i, 4, 8, choice, payload, 0});
  }
  Writer& command(Command command, std::initializer_list<std::uint8_t> fields) {
    put({static_cast<std::uint8_t>(command)});
    put(fields);
    return *this;
  }
  Bytes bytes() const { return bytes_; }

 private:
  std::uint8_t flags() const { return std::to_integer<std::uint8_t>(bytes_[0]); }
  void put(std::initializer_list<std::uint8_t> values) {
    for (const std::uint8_t value : values) bytes_.push_back(static_cast<std::byte>(value));
  }

  Bytes bytes_;
  std::uint8_t stream_ = 0;
};

Bytes serverSteps(std::uint8_t flags) {
  Writer writer(flags);
  for (std::uint8_t step = 1; step <= 2; ++step) {
    for (std::uint8_t i = 0; i < 4; ++i) {
      writer.tensor(0, step, i).command(Command::work, {4});
      writer.command(Command::received, {1, step, i});
      writer.tensor(2, step, i).command(Command::work, {4});
      writer.command(Command::received, {3, step, i});
    }
    writer.command(Command::step, {step, 1}).command(Command::work, {4});
  }
  for (std::uint8_t i = 0; i < 4; ++i) {
    constexpr std::uint8_t kAfterTwo = 0x80;  // the weights after two steps
    writer.tensor(kEval | 0, 1, i, kAfterTwo).command(Command::work, {2});
    writer.command(Command::received, {kEval | 1, 1, i});
  }
  return writer.command(Command::fetch, {0}).command(Command::work, {2}).bytes();
}

Bytes clientSteps(std::uint8_t flags) {
  Writer writer(flags);
  for (std::uint8_t step = 1; step <= 2; ++step) {
    writer.command(Command::begin, {0, 7}).command(Command::work, {4});
    for (std::uint8_t i = 0; i < 4; ++i) {
      writer.command(Command::received, {0, step, i});
      writer.tensor(1, step, i).command(Command::work, {4});
      writer.command(Command::received, {2, step, i});
      writer.tensor(3, step, i).command(Command::work, {4});
    }
    writer.command(Command::bodyDone, {step}).command(Command::work, {4});
    writer.command(Command::stepOk, {step});
  }
  return writer.bytes();
}

}  // namespace

std::vector<Seed> seeds() {
  std::vector<Seed> all;
  for (const std::uint8_t flags : {std::uint8_t{0}, kCoded}) {
    const std::string codec = flags == 0 ? ", none" : ", coded";
    all.push_back({"server" + codec, serverSteps(flags)});
    all.push_back({"client" + codec, clientSteps(flags | kClient)});
  }
  // weights/body (flow 4), which is complete but lacks its digest; a stream in two segments; a
  // duplicate.
  all.push_back({"weights", Writer(kInitialWeights)
                                .command(Command::tensor, {1, 4, 0, 0, 0, 0, 4, 50, 0, 100})
                                .command(Command::segment, {1, 50, 50, 0})
                                .bytes()});
  all.push_back({"segments", Writer(0)
                                 .command(Command::tensor, {1, 0, 1, 0, 4, 8, 4, 64, 0, 128})
                                 .command(Command::segment, {1, 64, 64, 0})
                                 .command(Command::work, {1})
                                 .command(Command::tensor, {2, 0, 1, 0, 4, 8, 0, 128, 0})
                                 .bytes()});
  return all;
}

}  // namespace cleave::fuzz
