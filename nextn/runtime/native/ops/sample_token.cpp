#include <cmath>

#include "aoti_tensor.h"

namespace nextn::ops {
namespace {

constexpr uint64_t prime = 2147483647;  // 2^31 - 1
constexpr float temperature_one = 1048576.0f;

/** x modulo the Mersenne prime, x < 2^63. */
inline uint32_t reduce(uint64_t x) {
    x = (x & prime) + (x >> 31);
    x = (x & prime) + (x >> 31);
    return static_cast<uint32_t>(x >= prime ? x - prime : x);
}

inline uint32_t multiply(uint32_t a, uint32_t b) {
    return reduce(static_cast<uint64_t>(a) * b);
}

inline uint32_t fifth_power(uint64_t x) {
    const uint32_t base = reduce(x);
    const uint32_t square = multiply(base, base);
    return multiply(multiply(square, square), base);
}

struct NoiseKeys {
    uint32_t first, second;
};

/** The constants and order of `gumbel_noise` in nextn/graphs/ops/sample_token.py; seed and position are >= 0.
 */
NoiseKeys noise_keys(int64_t seed, int64_t position) {
    const uint64_t low = static_cast<uint64_t>(seed) % prime,
                   high = static_cast<uint64_t>(seed) / prime % prime;
    uint64_t key = fifth_power(low + 362436069);
    key = fifth_power(key + high + 521288629);
    key = fifth_power(key + static_cast<uint64_t>(position) % prime + 88675123);
    const uint32_t first = fifth_power(key + 1013904223);
    return {first, fifth_power(first + uint64_t{886756453})};
}

inline float gumbel(NoiseKeys keys, uint64_t token) {
    const uint32_t x = fifth_power(static_cast<uint64_t>(fifth_power(token + keys.first)) + keys.second);
    float uniform = (static_cast<float>(x) + 0.5f) * 0x1p-31f;
    uniform = uniform < 1.0f - 0x1p-24f ? uniform : 1.0f - 0x1p-24f;
    return -std::log(-std::log1p(-uniform));
}

int64_t greedy(const float *logits, int64_t vocab) {
    int64_t best = 0;
    for (int64_t token = 1; token < vocab; ++token) {
        if (logits[token] > logits[best]) best = token;
    }
    return best;
}

int64_t noisy(const float *logits, int64_t vocab, float temperature, NoiseKeys keys) {
    int64_t best = 0;
    float peak = -INFINITY;
    for (int64_t token = 0; token < vocab; ++token) {
        const float score = logits[token] + temperature * gumbel(keys, static_cast<uint64_t>(token));
        if (score > peak) {
            peak = score;
            best = token;
        }
    }
    return best;
}

}  // namespace
}  // namespace nextn::ops

/** logits fp32 [B, V, vocab] contiguous; seed, temperature int64 [B]; position int64 [B, V] -> int64 [B, V].
 *  Greedy rows never compute noise. Twin: sample_token_plain. */
NEXTN_OP aoti_torch_cpu_nextn_sample_token(AtenTensorHandle logits, AtenTensorHandle seed,
                                           AtenTensorHandle position, AtenTensorHandle temperature,
                                           AtenTensorHandle *ret0) {
    using namespace nextn::ops;
    TensorView<float, 3> rows;
    TensorView<int64_t, 1> seeds, temperatures;
    TensorView<int64_t, 2> positions, drawn;
    if (rows.open(logits) || seeds.open(seed) || temperatures.open(temperature) || positions.open(position) ||
        !rows.contiguous() || make_tensor(positions.sizes, ret0, &drawn)) {
        return failure;
    }
    const auto [batch, width, vocab] = rows.sizes;
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t fixed_point = temperatures.data[b * temperatures.strides[0]];
        const float scale = static_cast<float>(fixed_point) * (1.0f / temperature_one);
        for (int64_t v = 0; v < width; ++v) {
            const float *row = rows.data + (b * width + v) * vocab;
            const int64_t where = positions.data[b * positions.strides[0] + v * positions.strides[1]];
            drawn.data[b * width + v] =
                fixed_point == 0
                    ? greedy(row, vocab)
                    : noisy(row, vocab, scale, noise_keys(seeds.data[b * seeds.strides[0]], where));
        }
    }
    return ok;
}
