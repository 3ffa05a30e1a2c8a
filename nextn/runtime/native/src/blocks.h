// Generated from nextn/runtime/contract/blocks.py; do not edit. To make it anew:
// python -m nextn.runtime.contract.blocks_header > nextn/runtime/native/src/blocks.h
// clang-format off
#pragma once

#include <cstdint>

namespace nextn::core {

/** Columns of the control and result blocks. */
struct BlockField {
    const char *name;
    int64_t offset;
    int64_t length;
};

constexpr int64_t max_steps = 8;
constexpr int64_t max_window_rows = 9;
constexpr int64_t max_eos = 8;
constexpr int64_t temperature_one = 1048576;

namespace control {
constexpr int64_t width = 32;
constexpr BlockField pos{"pos", 0, 1};
constexpr BlockField bonus{"bonus", 1, 1};
constexpr BlockField remaining{"remaining", 2, 1};
constexpr BlockField finished{"finished", 3, 1};
constexpr BlockField step{"step", 4, 1};
constexpr BlockField seed{"seed", 5, 1};
constexpr BlockField temperature{"temperature", 6, 1};
constexpr BlockField top_k{"top_k", 7, 1};
constexpr BlockField top_p{"top_p", 8, 1};
constexpr BlockField min_p{"min_p", 9, 1};
constexpr BlockField prompt_length{"prompt_length", 10, 1};
constexpr BlockField eos{"eos", 11, 8};
constexpr BlockField draft{"draft", 19, 8};
constexpr BlockField fields[] = {pos, bonus, remaining, finished, step, seed, temperature, top_k, top_p, min_p, prompt_length, eos, draft};
}  // namespace control

namespace result {
constexpr int64_t width = 16;
constexpr BlockField out{"out", 0, 9};
constexpr BlockField out_count{"out_count", 9, 1};
constexpr BlockField accepted{"accepted", 10, 1};
constexpr BlockField finished{"finished", 11, 1};
constexpr BlockField pos{"pos", 12, 1};
constexpr BlockField fields[] = {out, out_count, accepted, finished, pos};
}  // namespace result

}  // namespace nextn::core
