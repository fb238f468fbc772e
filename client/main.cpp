// cleave-client: holds the data, the labels, and the first and last layers.

#include "client/client_program.h"
#include "common/files/environment.h"

int main(int argc, char** argv) {
  cleave::prepareProcess(argv);
  cleave::endProcess(cleave::runClientProgram(argc, argv));
}
