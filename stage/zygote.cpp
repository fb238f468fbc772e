#include "stage/zygote.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/fft_fft.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "stage/confinement.h"
#include "stage/orders.h"
#include "stage/served_stage.h"

namespace cleave {
namespace {

// LibTorch opens files and makes decisions about the processor when an operator runs for the first
// time. With one thread: after a parallel region, the processes forked later would wait for threads
// that they do not have.
void warmUp() {
  at::set_num_threads(1);
  at::manual_seed(0);
  const auto trained = [](at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
    return at::rand(shape).to(type).set_requires_grad(true);
  };
  const at::Tensor images = at::rand({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor x =
        at::conv2d(images.to(type), trained({8, 3, 3, 3}, type), trained({8}, type), 1, 1);
    x = at::batch_norm(x, trained({8}, type), trained({8}, type), at::zeros({8}, type),
                       at::ones({8}, type), true, 0.1, 1e-5, true);
    x = at::linear(at::relu(x).flatten(1), trained({16, 8 * 64}, type), trained({16}, type));
    at::layer_norm(x, {16}, trained({16}, type), trained({16}, type)).sum().backward();
  }
  const at::Tensor sequence = trained({2, 4, 8}), state = at::zeros({1, 4, 8});
  at::scaled_dot_product_attention(sequence, sequence, sequence).sum().backward();
  const auto output = at::lstm(sequence, {state, state},
                               {trained({32, 8}), trained({32, 8}), trained({32}), trained({32})},
                               true, 1, 0, true, false, false);
  std::get<0>(output).sum().backward();
  at::embedding(at::rand({8, 8}), at::zeros({2}, at::kLong));
  const at::Tensor square = at::rand({8, 8}) + at::eye(8);
  at::linalg_inv(square);
  std::get<0>(at::sort(square));
  at::fft_fft(square);
}

void writeErrorsTo(OpenFile errors) {
  for (const int standard : {0, 1, 2}) ::dup2(errors.get(), standard);
}

// Runs the process of a stage: `task`, then the process ends.
[[noreturn]] void runProcess(const std::function<void()>& task) {
  try {
    task();
    ::_exit(0);
  } catch (const std::exception& error) {
    const char* const what = error.what();
    [[maybe_unused]] const auto written = ::write(2, what, std::strlen(what));
    ::_exit(1);
  }
}

[[noreturn]] void runStage(const StageOrder& order, pid_t parent, std::vector<OpenFile> files) {
  runProcess([&] {
    writeErrorsTo(std::move(files[1]));
    const std::array kept = {0, 1, 2, files[0].get(), files[2].get(), files[3].get()};
    leaveParent(parent, kept);
    StageEnds ends{
        std::move(files[0]),
        SharedMemory::open(std::move(files[2]), order.inputBytes, false),
        SharedMemory::open(std::move(files[3]), order.outputBytes, true),
    };
    ends.input.closeFile();
    ends.output.closeFile();
    startComputeThreads(static_cast<int>(order.threads));
    confine(order.memoryBytes);
    serveStage(ends);
  });
}

// Confines itself as a stage's process does, and computes.
[[noreturn]] void runTrial(pid_t parent, OpenFile errors) {
  runProcess([&] {
    writeErrorsTo(std::move(errors));
    leaveParent(parent, std::array{0, 1, 2});
    startComputeThreads(2);
    confine(std::size_t{64} << 20);
    const at::Tensor large = at::ones({1 << 20});
    if (large.add(large).sum().item<float>() != 2 << 20) throw std::runtime_error("wrong sum");
  });
}

StageOrderReply forkStage(int socket, const StageOrder& order, std::vector<OpenFile> files,
                          OpenFile& process) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return {.error = errno};
  if (child == 0) {
    ::close(socket);
    runStage(order, parent, std::move(files));
  }
  process = OpenFile(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  return {.error = process ? 0 : errno, .process = child};
}

StageOrderReply statusOf(pid_t process) {
  StageOrderReply reply{.process = process};
  if (::waitpid(process, &reply.status, 0) != process) reply.error = errno;
  return reply;
}

StageOrderReply tryStage(int socket, OpenFile errors) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) return {.error = errno};
  if (child > 0) return statusOf(child);
  ::close(socket);
  runTrial(parent, std::move(errors));
}

}  // namespace

void serveStageOrders(int socket) {
  warmUp();
  StageOrder order;
  std::vector<OpenFile> files;
  while (receiveWithFiles(socket, bytesOf(order), files)) {
    StageOrderReply reply{.error = EINVAL};
    OpenFile process;
    if (order.kind == StageOrder::Kind::status) {
      reply = statusOf(order.process);
    } else if (order.kind == StageOrder::Kind::trial && files.size() == 1) {
      reply = tryStage(socket, std::move(files[0]));
    } else if (files.size() == kMaxOrderFiles) {
      reply = forkStage(socket, order, std::move(files), process);
    }
    files.clear();
    const std::array sent = {process.get()};
    if (!sendWithFiles(socket, bytesOf(reply), std::span(sent).first(process ? 1 : 0))) return;
  }
}

}  // namespace cleave
