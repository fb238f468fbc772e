// Calls every operator that graphs may use with random arguments, legal and hostile, forward and
// backward, as a server runs a client's graph. A case fails if
//   - a signal ends its process, also because of an access outside of a tensor;
//   - its results depend on memory that nobody has written;
//   - it changes its inputs, or returns a view of one that memoryOwners() does not know;
//   - one of its results or gradients has no memory.
// Prints the failed cases, which depend on the operator and the seed alone:
//
//   operator_fuzz [--cases N] [--stages N] [--seed SEED] [OPERATOR …]
// N: cases per operator, 100 by default, and how many of them also run as a server runs them, each
// in a process of a stage: no process may crash, and each error must have a code. OPERATOR:
// "lstm.input", or a part of its name. `--here` runs the cases in this process, for a debugger:
// `--seed SEED --cases 1 OPERATOR --here`.
#include <ATen/Parallel.h>
#include <spdlog/fmt/fmt.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/core/error.h"
#include "common/graph/operators.h"
#include "tests/operators/cases.h"
#include "tests/operators/guarded_memory.h"
#include "tests/operators/stage_cases.h"

namespace cleave::test {
namespace {

constexpr time_t kSecondsPerCase = 10;                     // of processor time
constexpr std::size_t kMaxBytes = std::size_t{128} << 20;  // of a case

// Shared with the children.
struct Progress {
  std::uint64_t next = 0;  // the case that runs
  std::uint64_t accepted = 0;
  double slowestSeconds = 0;
  char text[2000] = {};  // the case that runs
  char fault[200] = {};  // of the case that failed
  char slowest[2000] = {};
};

struct Options {
  std::uint64_t cases = 100;
  std::uint64_t stages = 5;
  std::uint64_t seed = 1;
  bool isHere = false;
  std::vector<std::string> ops;
};

bool isSameMemory(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() && a.storage().data() &&
         a.storage().data() == b.storage().data();
}

constexpr const char* kNoMemory = "no memory";

// Differs between tensors of different values.
std::string digestOf(const at::Tensor& tensor) {
  constexpr std::int64_t kMaxElements = 1 << 22;  // an expanded tensor may have more than fit
  if (!tensor.defined()) return "none";
  const std::string kind =
      fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","));
  if (tensor.numel() > kMaxElements) return kind;
  if (tensor.layout() != at::kStrided || tensor._is_zerotensor()) return kNoMemory;
  const at::Tensor dense = tensor.detach().contiguous();
  const std::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  return fmt::format("{} {:x}", kind, std::hash<std::string_view>()(bytes));
}

std::vector<std::string> digestsOf(const TensorList& tensors) {
  std::vector<std::string> digests;
  for (const at::Tensor& tensor : tensors) digests.push_back(digestOf(tensor));
  return digests;
}

struct Outcome {
  std::vector<std::string> results;
  bool isRefused = false;
  std::string fault;  // empty: none
};

// `fill`: the bytes of memory that nobody has written.
Outcome outcomeOf(const std::string& op, std::uint64_t seed, std::uint8_t fill,
                  Progress& progress) {
  Outcome outcome;
  GuardedMemory memory{seed % 4 == 0, fill, 0};
  setGuardedMemory(memory);
  const OperatorCase given = makeCase(op, seed);
  const std::string text = fmt::format("seed {}: {}", seed, given.text);
  progress.text[text.copy(progress.text, sizeof progress.text - 1)] = 0;
  const std::vector<std::string> before = digestsOf(given.inputs);
  TensorList results;
  memory.maxBytes = kMaxBytes;
  setGuardedMemory(memory);
  try {
    results = runCase(given);
  } catch (const std::exception&) {
    outcome.isRefused = true;
  }
  memory.maxBytes = 0;
  setGuardedMemory(memory);
  if (digestsOf(given.inputs) != before) outcome.fault = "changes its input";
  outcome.results = digestsOf(results);
  if (std::ranges::find(outcome.results, kNoMemory) != outcome.results.end()) {
    outcome.fault = "returns a tensor or a gradient without memory";
  }
  const GraphIds owners = memoryOwners(given.graph);
  for (int o = 0; !results.empty() && o < given.graph.outputs_size(); ++o) {
    const std::uint32_t output = given.graph.outputs(o);
    if (owners[output] != output) continue;
    for (const at::Tensor& input : given.inputs) {
      if (!isSameMemory(results[static_cast<std::size_t>(o)], input)) continue;
      outcome.fault = "returns a view that memoryOwners() does not know";
    }
  }
  return outcome;
}

// Returns what is wrong; empty: nothing.
std::string faultOf(const std::string& op, std::uint64_t seed, Progress& progress) {
  const Outcome first = outcomeOf(op, seed, 0xff, progress);
  progress.accepted += first.isRefused ? 0 : 1;
  if (!first.fault.empty()) return first.fault;
  const Outcome second = outcomeOf(op, seed, 0x11, progress);
  if (first.isRefused != second.isRefused) return "is refused or not, as unwritten memory says";
  for (std::size_t n = 0; n < first.results.size(); ++n) {
    if (first.results[n] != second.results[n]) {
      return fmt::format("result {} has memory that nobody has written", n);
    }
  }
  return "";
}

void limitThisProcess() {
  const rlimit none{0, 0}, space{rlim_t{8} << 30, rlim_t{8} << 30};
  ::setrlimit(RLIMIT_CORE, &none);
  ::setrlimit(RLIMIT_AS, &space);
}

struct Case {
  const std::string* op = nullptr;
  std::uint64_t seed = 0;
};

class Fuzz {
 public:
  Fuzz(const Options& options, StageProcesses& stages) : options_(options), stages_(stages) {
    for (const OperatorRow& row : operatorTable()) {
      const std::string name(row.name);
      const bool isChosen =
          options.ops.empty() || std::any_of(options.ops.begin(), options.ops.end(), [&](auto& op) {
            return name.find(op) != std::string::npos;
          });
      if (isChosen) ops_.push_back(name);
    }
    for (std::uint64_t n = 0; n < options.cases; ++n) {
      for (const std::string& op : ops_) cases_.push_back({&op, options.seed + n});
    }
    progress_ = static_cast<Progress*>(::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                                              MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }

  int run() {
    if (options_.isHere) {
      for (const Case& each : cases_) report(each, faultOf(*each.op, each.seed, *progress_));
    }
    while (!options_.isHere && progress_->next < cases_.size()) runChild();
    if (!options_.isHere) runStages();
    std::printf("%zu cases of %zu operators, %llu accepted; %zu failed, %zu took too long\n",
                cases_.size(), ops_.size(), static_cast<unsigned long long>(progress_->accepted),
                failed_, slow_);
    std::printf("slowest: %.1f s, %s\n", progress_->slowestSeconds, progress_->slowest);
    return failed_ == 0 ? 0 : 1;
  }

 private:
  // Runs cases until one of them fails.
  void runChild() {
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
      limitThisProcess();
      for (; progress_->next < cases_.size(); ++progress_->next) {
        const itimerval limit{{}, {kSecondsPerCase, 0}};
        ::setitimer(ITIMER_PROF, &limit, nullptr);
        const Case& each = cases_[progress_->next];
        const std::clock_t begin = std::clock();
        const std::string fault = faultOf(*each.op, each.seed, *progress_);
        const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
        if (seconds > progress_->slowestSeconds) {
          progress_->slowestSeconds = seconds;
          std::memcpy(progress_->slowest, progress_->text, sizeof progress_->text);
        }
        if (fault.empty()) continue;
        std::snprintf(progress_->fault, sizeof progress_->fault, "%s", fault.c_str());
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    const Case& each = cases_[progress_->next++];
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF) {
      ++slow_;
      std::printf("slow: %s\n", progress_->text);
    } else if (WIFSIGNALED(status)) {
      report(each, fmt::format("ends with signal {} ({})", WTERMSIG(status),
                               ::strsignal(WTERMSIG(status))));
    } else {
      report(each, progress_->fault);
    }
  }

  // Cases are in the order of their seeds.
  void runStages() {
    const std::size_t count = std::min(cases_.size(), ops_.size() * options_.stages);
    std::map<std::string, std::size_t> codes;
    for (std::size_t n = 0; n < count; ++n) {
      const OperatorCase given = makeCase(*cases_[n].op, cases_[n].seed);
      given.text.copy(progress_->text, sizeof progress_->text - 1);
      progress_->text[std::min(given.text.size(), sizeof progress_->text - 1)] = 0;
      const StageOutcome outcome = runInStage(stages_, given);
      ++codes[outcome.code];
      report(cases_[n], outcome.fault);
    }
    std::printf("%zu cases in stages' processes:", count);
    for (const auto& [code, number] : codes) {
      std::printf(" %zu %s", number, code.empty() ? "with a result" : code.c_str());
    }
    std::printf("\n");
  }

  void report(const Case& each, const std::string& fault) {
    if (fault.empty()) return;
    ++failed_;
    std::printf("FAILED: %s %s\n  %s\n", each.op->c_str(), fault.c_str(), progress_->text);
  }

  Options options_;
  StageProcesses& stages_;
  std::vector<std::string> ops_;
  std::vector<Case> cases_;
  Progress* progress_ = nullptr;
  std::size_t failed_ = 0, slow_ = 0;
};

Options optionsOf(int argc, char** argv) {
  Options options;
  for (int n = 1; n < argc; ++n) {
    const std::string given = argv[n];
    const auto number = [&] { return ++n < argc ? std::stoull(argv[n]) : 0; };
    if (given == "--cases") {
      options.cases = number();
    } else if (given == "--stages") {
      options.stages = number();
    } else if (given == "--seed") {
      options.seed = number();
    } else if (given == "--here") {
      options.isHere = true;
    } else {
      options.ops.push_back(given);
    }
  }
  return options;
}

}  // namespace
}  // namespace cleave::test

int main(int argc, char** argv) {
  cleave::StageProcesses stages;
  at::set_num_threads(1);  // forked children have no other threads
  cleave::test::installGuardedMemory();
  return cleave::test::Fuzz(cleave::test::optionsOf(argc, argv), stages).run();
}
