// The stage's side of the boundary: answers the server's requests with a BodyStage, until the
// server closes the socket.
#pragma once

#include "common/core/open_file.h"
#include "stage/shared_memory.h"

namespace cleave {

// What a stage's process is given.
struct StageEnds {
  OpenFile socket;
  SharedMemory input;   // written by the server
  SharedMemory output;  // written by this process
};

void serveStage(const StageEnds& ends);

}  // namespace cleave
