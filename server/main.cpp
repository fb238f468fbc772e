// cleave-server: runs the middle layers of its clients' models.

#include "common/files/environment.h"
#include "server/server_program.h"

int main(int argc, char** argv) {
  cleave::prepareProcess(argv);
  cleave::endProcess(cleave::runServerProgram(argc, argv));
}
