# Flags of every Koine target. Warnings are errors only when Koine is the project being built.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS ON) # __int128
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(KOINE_SANITIZE "" CACHE STRING "Sanitizers, for example address,undefined or thread")

option(KOINE_LLVM_SHARED "Link LLVM's shared library: links in a second, starts 15 ms later; for development" OFF)
option(KOINE_WERROR "Warnings are errors, where Koine is the project being built" ON)
option(KOINE_WHOLE "For builds of the whole: the library has precompiled headers of others, and files are compiled eight to sixteen at once: in half of the time. A missing include is not seen, but by presets without, such as quick" OFF)

add_library(koine_options INTERFACE)
target_compile_options(koine_options INTERFACE -ffp-contract=off)
if(PROJECT_IS_TOP_LEVEL)
  # Where files are compiled several at once, names of one would hide those of another: presets without, such as quick, warn.
  target_compile_options(koine_options INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Wshadow> -Wall -Wextra $<$<BOOL:${KOINE_WERROR}>:-Werror> -Wno-missing-field-initializers)
endif()
# What changes how fast the compiler is, and nothing else: GCC would collect garbage from 128 MB on, a tenth of its time.
set(KOINE_COMPILER_OPTIONS $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>)
if(KOINE_SANITIZE)
  add_compile_options(-fsanitize=${KOINE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  # A null that is followed and a pointer beyond its array end the program under ASan too, where they are read;
  # alignment matters where bytes become values, and is checked in those layers alone. Checked at every access by
  # pointer the three are half of a build's time.
  if(KOINE_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize=null,alignment,pointer-overflow)
  endif()
  # GCC 12 takes std::variant's storage for uninitialised when a sanitizer changes its inlining.
  add_compile_options(-Wno-maybe-uninitialized)
  add_link_options(-fsanitize=${KOINE_SANITIZE})
endif()

find_program(CCACHE ccache)
if(CCACHE AND PROJECT_IS_TOP_LEVEL)
  # Without the sloppiness ccache does not keep objects that use a precompiled header, as those of tests do;
  # with what the compiler depends on it need not preprocess first, a tenth of a build.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  list(APPEND KOINE_COMPILER_OPTIONS $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()
if(PROJECT_IS_TOP_LEVEL)
  add_compile_options(${KOINE_COMPILER_OPTIONS})
endif()
