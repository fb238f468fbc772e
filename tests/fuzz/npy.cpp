// Fuzz target: bytes that are read as a .npy file. Only UsageError is allowed, and an accepted
// array must be within the file.
#include "client/data/files/npy.h"

#include "common/core/error.h"
#include "tests/fuzz/seeds.h"

using namespace cleave;
using namespace cleave::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const NpyArray array = readNpy(file, "file");
    std::size_t bytes = static_cast<std::size_t>(array.dtype.at(1) - '0');
    for (const std::int64_t dimension : array.shape) bytes *= static_cast<std::size_t>(dimension);
    if (bytes != array.bytes.size()) find("the shape does not fit the bytes");
    if (!array.bytes.empty() &&
        (array.bytes.data() < file.data() || array.bytes.data() + bytes != file.data() + size))
      find("the array is outside the file");
  } catch (const UsageError&) {
    return 0;
  }
  return 0;
}

std::vector<Seed> cleave::fuzz::seeds() {
  const auto npy = [](const std::string& header, std::size_t bytes) {
    std::string file("\x93NUMPY\x01\x00", 8);
    file += static_cast<char>(header.size());
    file += '\0';
    return bytesOf(file + header + std::string(bytes, 'x'));
  };
  return {
      {"matrix", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24)},
      {"number", npy("{'descr': '|b1', 'fortran_order': False, 'shape': (), }", 1)},
      {"records", npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", 4)},
      {"large", npy("{'descr':'<f8','fortran_order':True,'shape':(9999999999,9999999999)}", 0)},
  };
}
