// LibTorch's wheel contains Gloo, but not its headers. The files in this folder declare what
// torch/csrc/distributed/c10d/ProcessGroupGloo.hpp needs in order to compile. Only c10d's exported
// functions may be called: an object of a class that is declared here, or of GlooStore, must not be
// created, because the library's classes have other members and virtual functions.
#pragma once
