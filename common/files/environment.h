// The environment that a run's measurements depend on (environment.json), and process-wide settings
// that must be made at startup.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace cleave {

std::string softwareVersion();   // "cleave 0.1.0"
std::string softwareRevision();  // git revision of the sources; empty if not built from git

// {software, revision (git), compiler, kernel, cpu {model, cores, flags of interest}, memory_bytes,
// threads, pid, started (UTC)}.
nlohmann::json describeEnvironment(int threads);

// Cores available to this process (sched_getaffinity, cgroup quota).
int usableCores();
std::uint64_t machineMemory();  // bytes

// The number of compute threads on one side of a run, and the reason for it, for the log.
struct ThreadCount {
  int threads = 1;
  std::string text;  // "1 of 2 cores: half, because client and server share this machine"
};
// Returns `asked` threads; if that is 0, all of `cores`, or half of them if client and server share
// the machine. The result is at most `cores` and at most `max` (0: no limit).
ThreadCount chooseThreads(int cores, int asked, int max, bool sharesMachine);

// Call first in main. keepFreedMemory(), and if OMP_WAIT_POLICY is unset, sets it to passive,
// because spinning threads would take cores from the io thread and from a peer on the same machine.
// The program is then re-executed, because libgomp reads the variable only at load time.
void prepareProcess(char** argv);
// Call last in main, with its exit code. Writes what standard streams have buffered, and ends the
// process without the destructors of static objects: LibTorch's take a quarter of the time of a
// program that only prints its version.
[[noreturn]] void endProcess(int code);
// Makes malloc use one arena, and keep large blocks instead of returning them to the kernel each
// time. Call before the process has a second thread.
void keepFreedMemory();
// Returns unused memory to the system, which malloc no longer does by itself after
// keepFreedMemory(). Takes a few ms per 100 MiB, and the next use of that memory faults its pages
// in again, so call it only after something large has ended.
void releaseMemory();

}  // namespace cleave
