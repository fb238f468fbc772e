// The C library's own functions, which libc.cpp replaces.
#pragma once

#include <poll.h>
#include <pthread.h>
#include <sys/types.h>

#include <cstddef>

namespace cleave::sim::real {

long call(long number, long a, long b, long c, long d, long e, long f);  // a system call
int poll(pollfd* files, std::size_t count, int milliseconds);
int close(int file);
int createThread(pthread_t* thread, void* (*function)(void*), void* argument);
int rename(const char* from, const char* to);
int unlink(const char* path);

}  // namespace cleave::sim::real
