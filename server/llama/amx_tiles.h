// Two AMX intrinsics of GCC 12, with all the memory that they read. There the compiler drops stores that only
// they need, such as those of llama.cpp's tile configuration, so that its first decode dies (GCC 12.2;
// https://github.com/ggml-org/llama.cpp/pull/26954). Included before every C++ file of llama.cpp by the Makefile.
#pragma once
// amxtileintrin.h wants to be included by immintrin.h, which takes the compiler 0.3 s in each file
#define _IMMINTRIN_H_INCLUDED
#include <amxtileintrin.h>
#undef _IMMINTRIN_H_INCLUDED

#undef _tile_loadconfig
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg\t%X0" : : "m"(*(const char(*)[64])(config)) : "memory")

#undef _tile_loadd_internal
#define _tile_loadd_internal(tile, base, stride) \
  __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #tile : : "r"((const void *)(base)), "r"((long)(stride)) : "memory")
