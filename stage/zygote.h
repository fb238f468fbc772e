// The stage server: a process with LibTorch loaded and one thread, from which the server has each
// stage's process forked. It is started before the server reads its configuration and its keys.
#pragma once

namespace cleave {

// Serves orders (orders.h) until the socket is closed. The calling process must have one thread.
void serveStageOrders(int socket);

}  // namespace cleave
