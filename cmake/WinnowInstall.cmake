# find_package(winnow) for users: target winnow::winnow.
include(CMakePackageConfigHelpers)
install(TARGETS winnow EXPORT winnow-targets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/winnow DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET winnow_cli)
  install(TARGETS winnow_cli)
endif()
set(winnow_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/winnow)
install(EXPORT winnow-targets NAMESPACE winnow:: DESTINATION ${winnow_config_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/winnow-config.cmake.in ${PROJECT_BINARY_DIR}/winnow-config.cmake
  INSTALL_DESTINATION ${winnow_config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/winnow-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/winnow-config.cmake ${PROJECT_BINARY_DIR}/winnow-config-version.cmake
  DESTINATION ${winnow_config_dir})
