#include "common/run/device.h"

#include <dlfcn.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "common/core/error.h"
#include "common/device/cuda_library.h"

namespace cleave {
namespace {

constexpr const char* kUseCpu = "or compute on the CPU: device: cpu";

[[noreturn]] void refuseDevice(const std::string& sentence, const std::string& hint) {
  throw UsageError("bad-device", sentence, hint);
}

// The GPU's index; nullopt for the CPU.
std::optional<int> gpuOf(const std::string& name) {
  if (name == "cpu") return std::nullopt;
  if (name == "cuda") return 0;
  const std::string prefix = "cuda:";
  int index = 0;
  const char* end = name.data() + name.size();
  if (name.starts_with(prefix)) {
    const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, index);
    if (error == std::errc() && stop == end && index >= 0 && index < 64) return index;
  }
  refuseDevice("there is no device '" + name + "'",
               "use cpu, cuda, or cuda:N for the GPU of that number");
}

std::string libraryPath() {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const auto& path :
       {folder / "libcleave_cuda.so", folder / "../lib/cleave/libcleave_cuda.so"}) {
    if (std::filesystem::exists(path)) return path.lexically_normal().string();
  }
  refuseDevice("device is cuda, but this build has no libcleave_cuda.so in " + folder.string() +
                   " or ../lib/cleave",
               std::string("install a CUDA toolkit and build with cmake --preset release "
                           "-DCLEAVE_CUDA=ON, ") +
                   kUseCpu);
}

// Checks for the driver before loading about a gigabyte of libraries, whose error messages are less
// specific.
void requireDriver() {
  if (void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY)) {
    ::dlclose(driver);
    return;
  }
  refuseDevice(
      "device is cuda, but there is no NVIDIA driver on this machine (libcuda.so.1)",
      std::string("install the GPU's driver and check that nvidia-smi lists the GPU, ") + kUseCpu);
}

CleaveOpenCuda* loadLibrary() {
  const std::string path = libraryPath();
  requireDriver();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* open = library != nullptr ? ::dlsym(library, kCleaveOpenCuda) : nullptr;
  if (open == nullptr) {
    const char* reason = ::dlerror();
    refuseDevice(
        "device is cuda, but " + path + " cannot be loaded: " + (reason ? reason : "unknown"),
        std::string("install PyTorch with its GPU libraries and set CLEAVE_TORCH_DIR to its torch "
                    "folder (docs/configuration.md, GPUs), ") +
            kUseCpu);
  }
  return reinterpret_cast<CleaveOpenCuda*>(open);
}

}  // namespace

void checkDeviceName(const std::string& name) { gpuOf(name); }

ComputeDevice& openDevice(const std::string& name) {
  const auto gpu = gpuOf(name);
  if (!gpu) return cpuDevice();
  // If it is set, LibTorch parses it at every matrix product, which takes a third of a
  // transformer's time. Bits do not need it: LibTorch gives each stream a workspace, and we compute
  // on one.
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  std::string error;
  ComputeDevice* device = loadLibrary()(*gpu, error);
  if (device == nullptr) {
    refuseDevice("device is " + name + ", but " + error,
                 std::string("check nvidia-smi and CUDA_VISIBLE_DEVICES, ") + kUseCpu);
  }
  return *device;
}

}  // namespace cleave
