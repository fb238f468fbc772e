# Defines WebP::webp, because Debian's libwebp-dev has no CMake package.
find_path(WebP_INCLUDE_DIR webp/decode.h)
find_library(WebP_LIBRARY webp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(WebP REQUIRED_VARS WebP_INCLUDE_DIR WebP_LIBRARY
  REASON_FAILURE_MESSAGE "run scripts/setup.sh, which installs libwebp-dev")
if(WebP_FOUND AND NOT TARGET WebP::webp)
  add_library(WebP::webp SHARED IMPORTED)
  set_target_properties(WebP::webp PROPERTIES IMPORTED_LOCATION ${WebP_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${WebP_INCLUDE_DIR})
endif()
