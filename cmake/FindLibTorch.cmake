# Defines LibTorch as imported targets: LibTorch::cpu, and LibTorch::cuda if it has GPU support.
# Searches CLEAVE_TORCH_DIR (the `torch` or `libtorch` folder of an unpacked wheel or zip) and
# .deps/, which scripts/setup.sh fills.
#
# Does not use the wheel's TorchConfig.cmake, which requires a CUDA toolkit. The wheel's include
# folder also has fmt and protobuf headers that would shadow the system's, hence -idirafter.
set(CLEAVE_TORCH_DIR "$ENV{CLEAVE_TORCH_DIR}" CACHE PATH "Folder of LibTorch with include/ and lib/")
set(LibTorch_VERSION 2.11.0)
find_path(LibTorch_INCLUDE_DIR ATen/ATen.h
  PATHS ${CLEAVE_TORCH_DIR}/include ${CMAKE_SOURCE_DIR}/.deps/torch-${LibTorch_VERSION}/torch/include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS ${LibTorch_INCLUDE_DIR}/../lib NO_DEFAULT_PATH)
find_library(LibTorch_CUDA_LIBRARY torch_cuda PATHS ${LibTorch_INCLUDE_DIR}/../lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda PATHS ${LibTorch_INCLUDE_DIR}/../lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS ${LibTorch_INCLUDE_DIR}/../lib NO_DEFAULT_PATH)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, or set CLEAVE_TORCH_DIR to an unpacked LibTorch ${LibTorch_VERSION}")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY})
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY})
  target_compile_options(LibTorch::cpu INTERFACE
    "SHELL:-idirafter ${LibTorch_INCLUDE_DIR}"
    "SHELL:-idirafter ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include")
  # libtorch_cpu references GPU libraries that a machine without a GPU may not have.
  target_link_options(LibTorch::cpu INTERFACE -Wl,--allow-shlib-undefined)
  target_link_libraries(LibTorch::cpu INTERFACE LibTorch::c10 Threads::Threads)
endif()

if(LibTorch_FOUND AND LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY AND NOT TARGET LibTorch::cuda)
  # We use no symbol of libtorch_cuda, but the library must be loaded, because loading registers
  # LibTorch's GPU operations.
  add_library(LibTorch::cuda INTERFACE IMPORTED)
  target_link_options(LibTorch::cuda INTERFACE -Wl,--no-as-needed)
  target_link_libraries(LibTorch::cuda INTERFACE LibTorch::cpu ${LibTorch_CUDA_LIBRARY} ${LibTorch_C10_CUDA_LIBRARY})
endif()
