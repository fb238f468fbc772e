// The command line of cleave-client.
#pragma once

namespace cleave {

// Runs the command that the arguments name. Returns the exit code. Errors are on stderr.
int runClientProgram(int argc, char** argv);

}  // namespace cleave
