// The command line of cleave-server.
#pragma once

namespace cleave {

// Runs the command that the arguments name. Returns the exit code. Errors are on stderr.
int runServerProgram(int argc, char** argv);

}  // namespace cleave
