#!/usr/bin/env bash
# Installs what a GPU image needs in addition to a CPU image: CUDA's compiler and LibTorch's GPU libraries, from PyPI, next
# to LibTorch in .deps/. With `--install PREFIX`: copies the runtime libraries to PREFIX/gpu.
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=(.deps/torch-*/)
wheels=${wheels[0]%/}

if [ "${1:-}" = --install ]; then
  mkdir -p "$2/gpu/torch"
  cp -r "$wheels/torch/lib" "$2/gpu/torch/"
  cp -r "$wheels/nvidia" "$2/gpu/"
  rm -f "$2"/gpu/torch/lib/libtorch_python.so
  find "$2/gpu/nvidia" -mindepth 2 -maxdepth 2 ! -name lib -exec rm -rf {} +
  find "$2/gpu" -name '*.a' -delete
  exit
fi

# The versions that torch's wheel requires, and the compiler of the same CUDA release.
.deps/venv/bin/pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --target "$wheels" \
  nvidia-cublas==13.1.0.3 nvidia-cuda-cupti==13.0.85 nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 \
  nvidia-cudnn-cu13==9.19.0.56 nvidia-cufft==12.0.0.61 nvidia-cufile==1.15.1.6 nvidia-curand==10.4.0.35 \
  nvidia-cusolver==12.0.4.66 nvidia-cusparse==12.6.3.3 nvidia-cusparselt-cu13==0.8.0 nvidia-nccl-cu13==2.28.9 \
  nvidia-nvjitlink==13.0.88 nvidia-nvshmem-cu13==3.4.5 \
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85
# The wheels contain the versioned libraries that programs load, but not the names that linkers look for.
ln -sf libcudart.so.13 "$wheels/nvidia/cu13/lib/libcudart.so"
ln -sfn "$PWD/$wheels/nvidia/cu13" /cuda
