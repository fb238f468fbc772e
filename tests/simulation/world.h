// A world of its own for the threads of several programs in one process: one thread runs at a time,
// a seed chooses which one, and time passes only while all of them wait. So a run of the real
// client and the real server is repeatable from its seed, and hours of time-outs take no time.
//
// libc.cpp defines the functions of the C library that wait, tell the time, or use files and
// sockets; they replace the C library's in the whole process. On a thread of this world they are
// simulated; on any other thread they do what they always do.
//
// A node stands for a machine. Its threads, descriptors and files belong to it, and it can be
// killed at any switch between threads.
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

enum Node : int { kDirector = 0, kClient = 1, kServer = 2, kNodes = 3 };

// ---- For the director of a simulation ----

// Makes the calling thread the first of the world, of the node kDirector. Once per process.
// `wallClock`: CLOCK_REALTIME at first.
void begin(std::uint64_t seed, Nanoseconds wallClock);
// Starts a thread of this node.
void start(Node node, std::function<void()> program);
void sleep(Nanoseconds time);
Nanoseconds now();
// From now on CLOCK_REALTIME, on all nodes, differs by this from what it would have been.
void shiftWallClock(Nanoseconds by);
// A random number below `bound`, from the seed.
std::uint64_t draw(std::uint64_t bound);
// Switches between threads since begin(), and writes and other changes of a node's files.
std::uint64_t switches();
std::uint64_t fileCalls(Node node);

// The node's threads never run again, and its descriptors are closed. With `power`, the disk also
// loses what has not been synchronised. Takes effect at the first switch from number `at` on at
// which the node's threads hold no mutex, which another node may need.
void killAt(Node node, std::uint64_t at, bool power);
// The same just before a change of the node's files, by its number, whatever its threads hold.
void killAtFileCall(Node node, std::uint64_t call, bool power);
bool isAlive(Node node);

// The changes of the node's files with these numbers fail with this error.
void failFiles(Node node, std::uint64_t first, std::uint64_t count, int error);

// Files under this folder belong to the node.
void setFolder(Node node, const std::string& folder);

// ---- For libc.cpp; all of these must be called on a thread of the world ----

struct Thread;
bool isInside();  // whether the calling thread belongs to the world
Thread* createThread(void* (*function)(void*), void* argument);
void* joinThread(Thread* thread);
Thread* currentThread();
// Waits until wake() for this address, one of the descriptors is ready, or the deadline. Returns
// false at the deadline.
bool waitFor(const void* address, Nanoseconds deadline, const char* what);
bool waitForFiles(const pollfd* files, std::size_t count, Nanoseconds deadline);
void wakeOne(const void* address);
void wakeAll(const void* address);
// Perhaps lets other threads run. `caller`: the code that called the function of the C library. A
// node may be killed at a switch, so there is none within libraries: they have state that both
// nodes share, such as a cache of kernels, which a killed thread would leave half-made.
void maySwitch(const void* caller);
// Between these, the thread does not switch unless it has to wait.
void holdSwitches(int change);
void countLocks(int change);
Nanoseconds wallClock();
// A program reads the clock. If it does so again and again without waiting, it computes for some
// time: otherwise its time would not pass.
void lookAtClock();
Node currentNode();
// Returns only if the calling thread belongs to another node.
void killNow(Node node, bool power);
void opened(int file);
void closed(int file);

// Files. Each returns an error number to fail with, or 0.
int beforeChange(const char* path);
int beforeWrite(int file);
void openedFile(int file, const char* path, bool isNew);
void wrote(int file);
void synced(int file);
// Call before the change, since it keeps a copy of the old file.
void renames(const char* from, const char* to);
void removes(const char* path);

}  // namespace cleave::sim
