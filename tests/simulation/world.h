// A simulated world in which the threads of several programs run in one process. Only one thread
// runs at a time, chosen by a seed. Time jumps ahead when all threads wait, and advances a little
// at each switch and clock read. So a run of the real client and the real server is reproducible
// from its seed, and hours of timeouts cost nothing. libc.cpp defines the functions of the C
// library that wait, return the time, or use files and sockets. They replace the C library's
// functions in the whole process. On a thread of this world they are simulated; on any other thread
// they call the C library's functions. A node represents a machine. It has threads, descriptors and
// files, and can be killed at any thread switch.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace cleave::sim {

using Nanoseconds = std::int64_t;
inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
inline constexpr Nanoseconds kSecond = 1'000'000'000;

inline constexpr int kMaxClients = 3;
// kClient is the first client; those after it are the other members of its cohort.
enum Node : int { kDirector = 0, kServer = 1, kClient = 2, kNodes = kClient + kMaxClients };

// ---- For the director of a simulation ----

// Makes the calling thread the world's first thread, on the node kDirector. Call this once per
// process. `wallClock`: the initial CLOCK_REALTIME.
void begin(std::uint64_t seed, Nanoseconds wallClock);
// Starts a thread of this node.
void start(Node node, std::function<void()> program);
void sleep(Nanoseconds time);
Nanoseconds now();
// Sets the offset of CLOCK_REALTIME on all nodes, replacing the previous offset.
void shiftWallClock(Nanoseconds by);
// Returns a random number below `bound`, drawn from the seed.
std::uint64_t draw(std::uint64_t bound);
// The number of thread switches since begin().
std::uint64_t switches();
// The number of writes and other changes that the node has made to its files.
std::uint64_t fileCalls(Node node);

// Kills the node: its threads never run again, and its descriptors are closed. With `power`, the
// disk also loses what has not been synchronised. Takes effect at switch number `at`, or at the
// next switch at which no thread of the node holds a mutex: another node may need that mutex.
void killAt(Node node, std::uint64_t at, bool power);
// Like killAt(), but takes effect just before the node's file change with this number, even if its
// threads hold mutexes.
void killAtFileCall(Node node, std::uint64_t call, bool power);
// Kills `node` before its file change with this number, and each other node but the director at the
// next switch at which it holds no mutex.
void killAllAtFileCall(Node node, std::uint64_t call);
bool isAlive(Node node);

// Makes `count` of the node's file changes fail with this error, starting with number `first`.
void failFiles(Node node, std::uint64_t first, std::uint64_t count, int error);

// Maximum time that fsync takes on the node; initially 0.
void setSyncDelay(Node node, Nanoseconds delay);

// Assigns the files under this folder to the node.
void setFolder(Node node, const std::string& folder);
// Makes the node's files durable as they are. Call this after the director has replaced them.
void syncFolder(Node node);

// ---- For libc.cpp; all of these must be called on a thread of the world ----

struct Thread;
bool isInside();  // returns whether the calling thread belongs to the world
Thread* createThread(void* (*function)(void*), void* argument);
void* joinThread(Thread* thread);
Thread* currentThread();
// These functions wait until wakeOne() or wakeAll() is called for this address, or until one of the
// descriptors is ready. They return false if the deadline passes first.
bool waitFor(const void* address, Nanoseconds deadline, const char* what);
bool waitForFiles(const pollfd* files, std::size_t count, Nanoseconds deadline);
void wakeOne(const void* address);
void wakeAll(const void* address);
// May let another thread run. `caller`: address of the code that called the function of the C
// library. Never switches in a library's code: a node can be killed at a switch, and the killed
// thread would leave half-built state in a library that both nodes share, such as a cache of
// kernels.
void maySwitch(const void* caller);
// holdSwitches(1) disables switches of the calling thread until holdSwitches(-1), unless the thread
// must wait.
void holdSwitches(int change);
void countLocks(int change);
Nanoseconds wallClock();
// Called when a program reads the clock. Each read advances time, and repeated reads advance it
// more, so that a loop that polls the clock ends.
void lookAtClock();
Node currentNode();
// Returns only if the calling thread belongs to another node.
void killNow(Node node, bool power);
void opened(int file);
void closed(int file);

// Functions for files. The first three return the errno with which the call must fail, or 0.
int beforeChange(const char* path);
int beforeWrite(int file);
int beforeSync(int file);  // takes the time of an fsync
void openedFile(int file, const char* path, bool isNew);
void wrote(int file);
void synced(int file);
// Call this before the change, because it keeps a copy of the old file.
void renames(const char* from, const char* to);
void removes(const char* path);

}  // namespace cleave::sim
