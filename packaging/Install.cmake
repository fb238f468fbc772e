# Defines what `cmake --install` installs, and the archives that scripts/package.sh builds from it
# with CPack (docs/install.md). All paths are relative to the prefix; the programs find their
# libraries relative to their own location.
#
# Components: `programs`; `torch`, LibTorch's CPU libraries; `libraries`, copies of Debian's
# libraries for machines without them; `gpu_tests`. `cmake --install` without a component installs
# the first two.
set(libraries lib/cleave)
set(documents share/doc/cleave)
set(programs cleave-client cleave-server cleave-stage cleave-link cleave-relay)

set_target_properties(${programs} PROPERTIES INSTALL_RPATH "$ORIGIN/../${libraries}")
install(TARGETS ${programs} RUNTIME_DEPENDENCY_SET cleave_needs RUNTIME DESTINATION bin COMPONENT programs)
install(PROGRAMS scripts/with_torch.sh DESTINATION bin COMPONENT programs RENAME cleave-with-torch)
install(DIRECTORY configs DESTINATION share/cleave COMPONENT programs)
install(DIRECTORY packaging/kubernetes packaging/slurm packaging/grafana packaging/prometheus DESTINATION share/cleave COMPONENT programs)
install(FILES python/pyproject.toml DESTINATION share/cleave/python COMPONENT programs)
install(DIRECTORY python/cleave_split DESTINATION share/cleave/python COMPONENT programs PATTERN "__pycache__" EXCLUDE)
install(FILES README.md LICENSE THIRD_PARTY.md DESTINATION ${documents} COMPONENT programs)
install(DIRECTORY docs DESTINATION ${documents} COMPONENT programs)
install(FILES proto/PROTOCOL.md DESTINATION ${documents}/proto COMPONENT programs)
install(FILES packaging/cleave-server.service DESTINATION lib/systemd/system COMPONENT programs)
install(FILES packaging/cleave.conf DESTINATION lib/sysusers.d COMPONENT programs)
add_custom_target(programs DEPENDS ${programs})
if(TARGET cleave_cuda)
  install(TARGETS cleave_cuda LIBRARY DESTINATION ${libraries} COMPONENT programs)
  add_dependencies(programs cleave_cuda)
endif()

# libtorch_cpu looks for its dependencies in its own folder. A PyPI wheel has the two CUDA
# libraries; LibTorch's CPU zip does not.
get_filename_component(torch ${LibTorch_INCLUDE_DIR} DIRECTORY)
file(GLOB torchNeeds ${torch}/lib/libgomp*.so* ${torch}/../nvidia/cu13/lib/libcudart.so.13 ${torch}/../nvidia/cu13/lib/libcupti.so.13)
install(FILES ${LibTorch_CPU_LIBRARY} ${LibTorch_C10_LIBRARY} ${torchNeeds} DESTINATION ${libraries} COMPONENT torch)
foreach(wheel torch nvidia_cuda_runtime nvidia_cuda_cupti)
  file(GLOB licence ${torch}/../${wheel}-*.dist-info/licenses/L*)
  if(licence)
    install(FILES ${licence} DESTINATION ${documents}/licences COMPONENT torch RENAME ${wheel})
  endif()
endforeach()

# All runtime dependencies except LibTorch and the C library, which must be the machine's own.
install(RUNTIME_DEPENDENCY_SET cleave_needs
  PRE_EXCLUDE_REGEXES "^libtorch" "^libc10" "^libgomp" "^libcu"
                      "^ld-linux" "^libc[.]" "^libm[.]" "^libdl[.]" "^libpthread[.]" "^librt[.]" "^libutil[.]" "^libresolv[.]"
  LIBRARY DESTINATION ${libraries} COMPONENT libraries EXCLUDE_FROM_ALL)
install(SCRIPT cmake/FinishLibraries.cmake COMPONENT libraries EXCLUDE_FROM_ALL)
# libarchive is linked statically, so no library of it is copied.
install(FILES /usr/share/doc/libarchive-dev/copyright DESTINATION ${documents}/licences COMPONENT libraries RENAME libarchive-dev
        EXCLUDE_FROM_ALL OPTIONAL)

# scripts/gpu.sh and its tests: a separate archive for a machine with a GPU and PyTorch.
if(TARGET cuda_test)
  set(tests cuda_test bench_gpu_codecs stage_test optimizer_test worker_test engine_test tensor_link_test connection_test codec_test
            safetensors_test)
  set_target_properties(${tests} PROPERTIES INSTALL_RPATH "$ORIGIN/../${libraries}")
  install(TARGETS ${tests} RUNTIME DESTINATION tests COMPONENT gpu_tests EXCLUDE_FROM_ALL)
  install(PROGRAMS scripts/gpu.sh tests/bench/gpu.py DESTINATION . COMPONENT gpu_tests EXCLUDE_FROM_ALL)
  install(FILES tests/bench/roberta.py tests/data/tiny.pt2 DESTINATION tests COMPONENT gpu_tests EXCLUDE_FROM_ALL)
  add_custom_target(gpu_tests DEPENDS programs ${tests})
endif()

# Headers of libraries compile __FILE__ into their messages. In an archive, the path of this machine
# becomes a relative one of the same length.
string(LENGTH ${CMAKE_SOURCE_DIR} length)
string(REPEAT "/" ${length} relative)
list(TRANSFORM programs PREPEND bin/)
list(TRANSFORM tests PREPEND tests/)
foreach(component programs gpu_tests)
  set(files ${programs} ${libraries}/libcleave_cuda.so)
  if(component STREQUAL gpu_tests)
    set(files ${tests})
  endif()
  install(CODE "foreach(file ${files})
                  set(path \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/\${file})
                  if(EXISTS \${path})
                    execute_process(COMMAND env LC_ALL=C sed -i s|${CMAKE_SOURCE_DIR}/|.${relative}|g \${path}
                                    COMMAND_ERROR_IS_FATAL ANY)
                  endif()
                endforeach()"
          COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()

set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_FILE_NAME cleave-${PROJECT_VERSION}-linux-x86_64)
set(CPACK_COMPONENTS_ALL programs torch libraries)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_COMPONENT_INCLUDE_TOPLEVEL_DIRECTORY ON)
set(CPACK_STRIP_FILES ON)
include(CPack)
