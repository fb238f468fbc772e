# Defines LibArchive::static. The shared library needs libxml2 and ICU (35 MB) for formats other
# than tar. From the static library, only the objects for tar are linked; they need only the C
# library.
find_path(StaticArchive_INCLUDE_DIR archive.h)
find_library(StaticArchive_LIBRARY NAMES libarchive.a)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(StaticArchive REQUIRED_VARS StaticArchive_INCLUDE_DIR StaticArchive_LIBRARY
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, which installs libarchive-dev")
if(StaticArchive_FOUND AND NOT TARGET LibArchive::static)
  add_library(LibArchive::static STATIC IMPORTED)
  set_target_properties(LibArchive::static PROPERTIES IMPORTED_LOCATION ${StaticArchive_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${StaticArchive_INCLUDE_DIR})
endif()
