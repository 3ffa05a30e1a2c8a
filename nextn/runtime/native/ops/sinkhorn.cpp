#include <algorithm>
#include <cmath>

#include "aoti_tensor.h"

namespace nextn::ops {
namespace {

constexpr int64_t max_streams = 8;

void divide_columns(float *comb, int64_t m, float eps) {
    for (int64_t k = 0; k < m; ++k) {
        float sum = 0.0f;
        for (int64_t j = 0; j < m; ++j) sum += comb[j * m + k];
        sum += eps;
        for (int64_t j = 0; j < m; ++j) comb[j * m + k] /= sum;
    }
}

void divide_rows(float *comb, int64_t m, float eps) {
    for (int64_t j = 0; j < m; ++j) {
        float sum = 0.0f;
        for (int64_t k = 0; k < m; ++k) sum += comb[j * m + k];
        sum += eps;
        for (int64_t k = 0; k < m; ++k) comb[j * m + k] /= sum;
    }
}

void softmax_rows(const float *score, int64_t m, float eps, float *comb) {
    for (int64_t j = 0; j < m; ++j) {
        const float *in = score + j * m;
        float *out = comb + j * m;
        const float peak = *std::max_element(in, in + m);
        float sum = 0.0f;
        for (int64_t k = 0; k < m; ++k) sum += out[k] = std::exp(in[k] - peak);
        for (int64_t k = 0; k < m; ++k) out[k] = out[k] / sum + eps;
    }
}

/** `fixed` is M at compile time for the usual sizes, so that the compiler unrolls; 0 reads `m`. */
template <int64_t fixed>
void normalise(const float *score, int64_t rows, int64_t m, int64_t iterations, float eps, float *comb) {
    if constexpr (fixed > 0) m = fixed;
    for (int64_t row = 0; row < rows; ++row, score += m * m, comb += m * m) {
        float local[max_streams * max_streams];
        softmax_rows(score, m, eps, local);
        divide_columns(local, m, eps);
        for (int64_t i = 1; i < iterations; ++i) {
            divide_rows(local, m, eps);
            divide_columns(local, m, eps);
        }
        std::copy_n(local, m * m, comb);
    }
}

}  // namespace
}  // namespace nextn::ops

/** score fp32 [T, M, M] contiguous -> fp32 [T, M, M]; twin: sinkhorn_plain. */
NEXTN_OP aoti_torch_cpu_nextn_sinkhorn(AtenTensorHandle score, int64_t iterations, double eps,
                                       AtenTensorHandle *ret0) {
    using namespace nextn::ops;
    TensorView<float, 3> in, out;
    if (in.open(score) || !in.contiguous() || in.sizes[1] != in.sizes[2] || in.sizes[1] > max_streams) {
        return failure;
    }
    if (make_tensor(in.sizes, ret0, &out)) return failure;
    const auto kernel = in.sizes[1] == 4 ? normalise<4> : in.sizes[1] == 2 ? normalise<2> : normalise<0>;
    kernel(in.data, in.sizes[0], in.sizes[1], iterations, static_cast<float>(eps), out.data);
    return ok;
}
