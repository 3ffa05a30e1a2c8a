#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "aoti_tensor.h"

namespace nextn::ops {
namespace {

/** Orders like (score descending, index ascending) when keys are compared descending; NaN is -infinity. */
uint64_t sort_key(float score, uint32_t index) {
    if (std::isnan(score)) score = -INFINITY;
    score += 0.0f;  // -0 and +0 are one score
    uint32_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return static_cast<uint64_t>(bits) << 32 | (0xffffffffu - index);
}

void choose(const float *score, int64_t width, int64_t k, std::vector<uint64_t> &keys, int64_t *chosen) {
    for (int64_t i = 0; i < width; ++i) keys[i] = sort_key(score[i], static_cast<uint32_t>(i));
    if (k < width) {
        std::nth_element(keys.begin(), keys.begin() + k, keys.begin() + width, std::greater<uint64_t>());
    }
    for (int64_t i = 0; i < k; ++i) chosen[i] = 0xffffffffu - static_cast<uint32_t>(keys[i]);
}

AOTITorchError topk_entries(const float *score, int64_t rows, int64_t width, int64_t k, int64_t *chosen) {
    thread_local std::vector<uint64_t> keys;  // grows once, to the widest row of this thread
    if (keys.size() < static_cast<size_t>(width)) keys.resize(width);
    for (int64_t row = 0; row < rows; ++row) choose(score + row * width, width, k, keys, chosen + row * k);
    return ok;
}

template <size_t Rank>
AOTITorchError run(AtenTensorHandle score, int64_t k, AtenTensorHandle *ret0) {
    TensorView<float, Rank> in;
    TensorView<int64_t, Rank> out;
    if (in.open(score) || !in.contiguous() || k < 1 || k > in.sizes[Rank - 1]) return failure;
    std::array<int64_t, Rank> sizes = in.sizes;
    sizes[Rank - 1] = k;
    if (make_tensor(sizes, ret0, &out)) return failure;
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < Rank; ++i) rows *= in.sizes[i];
    return topk_entries(in.data, rows, in.sizes[Rank - 1], k, out.data);
}

}  // namespace
}  // namespace nextn::ops

/** score fp32 [..., E] contiguous, rank 2 or 3 -> int64 [..., k]; twin: topk_entries_plain. */
NEXTN_OP aoti_torch_cpu_nextn_topk_entries(AtenTensorHandle score, int64_t k, AtenTensorHandle *ret0) {
    using namespace nextn::ops;
    int64_t dim = 0;
    if (aoti_torch_get_dim(score, &dim)) return failure;
    try {
        return dim == 2 ? run<2>(score, k, ret0) : dim == 3 ? run<3>(score, k, ret0) : failure;
    } catch (const std::bad_alloc &) {
        return failure;
    }
}
