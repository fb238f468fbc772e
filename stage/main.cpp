// cleave-stage: computes the stages of the server's runs, each in a process that it forks. Started
// by cleave-server only.

#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

#include "common/files/environment.h"
#include "stage/zygote.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "cleave-stage: only the server starts this program; it has no other use\n";
    return 2;
  }
  // The server ends it by closing the socket; a signal to the process group must not.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  cleave::keepFreedMemory();
  cleave::serveStageOrders(std::atoi(argv[1]));
  cleave::endProcess(0);
}
