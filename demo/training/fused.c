/* Fused fp32 kernels for the operations that eager PyTorch runs slowly on a CPU: the 4x4 Sinkhorn, the mixing
 * of the four residual streams, RMSNorm, the clamped SwiGLU and interleaved rotary positions.
 * Single threaded: training runs one process per core. */
#include <math.h>
#include <string.h>

#define STREAMS 4
#define CELLS (STREAMS * STREAMS)
#define LANES 16 /* rows handled together, so that the compiler vectorises over rows */
#define MAX_PASSES 64

typedef float lanes_t[LANES];

/* One row or column normalisation; `line` counts rows or columns, `cell` walks along the line. */
static int cell_index(int by_column, int line, int cell) {
  return by_column ? cell * STREAMS + line : line * STREAMS + cell;
}

static void row_softmax(lanes_t *m) {
  for (int row = 0; row < STREAMS; row++) {
    lanes_t *cells = m + row * STREAMS;
    float largest[LANES], sum[LANES];
    for (int l = 0; l < LANES; l++) {
      largest[l] = cells[0][l];
      sum[l] = 0.f;
      for (int k = 1; k < STREAMS; k++) largest[l] = cells[k][l] > largest[l] ? cells[k][l] : largest[l];
    }
    for (int k = 0; k < STREAMS; k++)
      for (int l = 0; l < LANES; l++) {
        cells[k][l] = expf(cells[k][l] - largest[l]);
        sum[l] += cells[k][l];
      }
    for (int k = 0; k < STREAMS; k++)
      for (int l = 0; l < LANES; l++) cells[k][l] /= sum[l];
  }
}

/* Passes alternate column, row, column, ... and end with a column pass. Saves what the backward needs. */
static void normalise(lanes_t *m, int passes, float eps, lanes_t (*outputs)[CELLS], lanes_t (*inverse)[STREAMS]) {
  for (int pass = 0; pass < passes; pass++) {
    int by_column = pass % 2 == 0;
    for (int line = 0; line < STREAMS; line++) {
      float scale[LANES];
      for (int l = 0; l < LANES; l++) scale[l] = eps;
      for (int k = 0; k < STREAMS; k++)
        for (int l = 0; l < LANES; l++) scale[l] += m[cell_index(by_column, line, k)][l];
      for (int l = 0; l < LANES; l++) scale[l] = 1.f / scale[l];
      for (int k = 0; k < STREAMS; k++)
        for (int l = 0; l < LANES; l++) m[cell_index(by_column, line, k)][l] *= scale[l];
      if (inverse) memcpy(inverse[pass][line], scale, sizeof scale);
    }
    if (outputs) memcpy(outputs[pass], m, sizeof(lanes_t) * CELLS);
  }
}

static void load_lanes(lanes_t *m, const float *rows, long count) {
  for (int l = 0; l < LANES; l++)
    for (int e = 0; e < CELLS; e++) m[e][l] = l < count ? rows[l * CELLS + e] : 0.f;
}

static void store_lanes(float *rows, lanes_t *m, long count) {
  for (int l = 0; l < count; l++)
    for (int e = 0; e < CELLS; e++) rows[l * CELLS + e] = m[e][l];
}

void sinkhorn_forward(const float *logits, float *mix, long rows, long iterations, float eps) {
  for (long first = 0; first < rows; first += LANES) {
    long count = rows - first < LANES ? rows - first : LANES;
    lanes_t m[CELLS];
    load_lanes(m, logits + first * CELLS, count);
    row_softmax(m);
    for (int e = 0; e < CELLS; e++)
      for (int l = 0; l < LANES; l++) m[e][l] += eps;
    normalise(m, 2 * iterations - 1, eps, 0, 0);
    store_lanes(mix + first * CELLS, m, count);
  }
}

void sinkhorn_backward(const float *logits, const float *grad_mix, float *grad_logits, long rows, long iterations,
                       float eps) {
  int passes = 2 * iterations - 1;
  for (long first = 0; first < rows; first += LANES) {
    long count = rows - first < LANES ? rows - first : LANES;
    lanes_t m[CELLS], probabilities[CELLS], g[CELLS], outputs[MAX_PASSES][CELLS], inverse[MAX_PASSES][STREAMS];
    load_lanes(m, logits + first * CELLS, count);
    load_lanes(g, grad_mix + first * CELLS, count);
    row_softmax(m);
    memcpy(probabilities, m, sizeof m);
    for (int e = 0; e < CELLS; e++)
      for (int l = 0; l < LANES; l++) m[e][l] += eps;
    normalise(m, passes, eps, outputs, inverse);
    for (int pass = passes - 1; pass >= 0; pass--)
      for (int line = 0; line < STREAMS; line++) {
        float dot[LANES] = {0};
        for (int k = 0; k < STREAMS; k++) {
          int e = cell_index(pass % 2 == 0, line, k);
          for (int l = 0; l < LANES; l++) dot[l] += g[e][l] * outputs[pass][e][l];
        }
        for (int k = 0; k < STREAMS; k++) {
          int e = cell_index(pass % 2 == 0, line, k);
          for (int l = 0; l < LANES; l++) g[e][l] = (g[e][l] - dot[l]) * inverse[pass][line][l];
        }
      }
    for (int row = 0; row < STREAMS; row++) {
      float dot[LANES] = {0};
      for (int e = row * STREAMS; e < (row + 1) * STREAMS; e++)
        for (int l = 0; l < LANES; l++) dot[l] += g[e][l] * probabilities[e][l];
      for (int e = row * STREAMS; e < (row + 1) * STREAMS; e++)
        for (int l = 0; l < LANES; l++) g[e][l] = (g[e][l] - dot[l]) * probabilities[e][l];
    }
    store_lanes(grad_logits + first * CELLS, g, count);
  }
}

/* out[k] = write[k] * y + sum_j mix[j][k] * streams[j] */
void write_streams_forward(const float *y, const float *streams, const float *write, const float *mix, float *out,
                           long rows, long width) {
  for (long t = 0; t < rows; t++) {
    const float *s0 = streams + t * STREAMS * width, *s1 = s0 + width, *s2 = s1 + width, *s3 = s2 + width;
    const float *update = y + t * width, *m = mix + t * CELLS;
    for (int k = 0; k < STREAMS; k++) {
      float *o = out + (t * STREAMS + k) * width, w = write[t * STREAMS + k];
      float a = m[k], b = m[4 + k], c = m[8 + k], d = m[12 + k];
      for (long i = 0; i < width; i++) o[i] = w * update[i] + a * s0[i] + b * s1[i] + c * s2[i] + d * s3[i];
    }
  }
}

void write_streams_backward(const float *grad, const float *y, const float *streams, const float *write,
                            const float *mix, float *grad_y, float *grad_streams, float *grad_write,
                            float *grad_mix, long rows, long width) {
  for (long t = 0; t < rows; t++) {
    const float *g0 = grad + t * STREAMS * width, *g1 = g0 + width, *g2 = g1 + width, *g3 = g2 + width;
    const float *w = write + t * STREAMS, *update = y + t * width;
    float *gy = grad_y + t * width, *gw = grad_write + t * STREAMS;
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    for (long i = 0; i < width; i++) {
      gy[i] = w[0] * g0[i] + w[1] * g1[i] + w[2] * g2[i] + w[3] * g3[i];
      d0 += g0[i] * update[i], d1 += g1[i] * update[i], d2 += g2[i] * update[i], d3 += g3[i] * update[i];
    }
    gw[0] = d0, gw[1] = d1, gw[2] = d2, gw[3] = d3;
    for (int j = 0; j < STREAMS; j++) {
      const float *s = streams + (t * STREAMS + j) * width, *m = mix + t * CELLS + j * STREAMS;
      float *gs = grad_streams + (t * STREAMS + j) * width, *gm = grad_mix + t * CELLS + j * STREAMS;
      float a = m[0], b = m[1], c = m[2], d = m[3];
      d0 = d1 = d2 = d3 = 0;
      for (long i = 0; i < width; i++) {
        gs[i] = a * g0[i] + b * g1[i] + c * g2[i] + d * g3[i];
        d0 += s[i] * g0[i], d1 += s[i] * g1[i], d2 += s[i] * g2[i], d3 += s[i] * g3[i];
      }
      gm[0] = d0, gm[1] = d1, gm[2] = d2, gm[3] = d3;
    }
  }
}

/* out = sum_j read[j] * streams[j] */
void read_streams_forward(const float *streams, const float *read, float *out, long rows, long width) {
  for (long t = 0; t < rows; t++) {
    const float *s0 = streams + t * STREAMS * width, *s1 = s0 + width, *s2 = s1 + width, *s3 = s2 + width;
    const float *r = read + t * STREAMS;
    float *o = out + t * width;
    for (long i = 0; i < width; i++) o[i] = r[0] * s0[i] + r[1] * s1[i] + r[2] * s2[i] + r[3] * s3[i];
  }
}

void read_streams_backward(const float *grad, const float *streams, const float *read, float *grad_streams,
                           float *grad_read, long rows, long width) {
  for (long t = 0; t < rows * STREAMS; t++) {
    const float *g = grad + t / STREAMS * width, *s = streams + t * width;
    float *gs = grad_streams + t * width, r = read[t], dot = 0;
    for (long i = 0; i < width; i++) {
      gs[i] = r * g[i];
      dot += g[i] * s[i];
    }
    grad_read[t] = dot;
  }
}

/* out = x * inverse_rms * weight; weight may be null */
void rms_norm_forward(const float *x, const float *weight, float *out, float *inverse_rms, long rows, long width,
                      float eps) {
  for (long t = 0; t < rows; t++) {
    const float *in = x + t * width;
    float *o = out + t * width, sum = 0;
    for (long i = 0; i < width; i++) sum += in[i] * in[i];
    float r = inverse_rms[t] = 1.f / sqrtf(sum / width + eps);
    if (weight)
      for (long i = 0; i < width; i++) o[i] = in[i] * r * weight[i];
    else
      for (long i = 0; i < width; i++) o[i] = in[i] * r;
  }
}

/* grad_weight must start at zero; both weight pointers may be null */
void rms_norm_backward(const float *grad, const float *x, const float *weight, const float *inverse_rms,
                       float *grad_x, float *grad_weight, long rows, long width) {
  for (long t = 0; t < rows; t++) {
    const float *in = x + t * width, *g = grad + t * width;
    float *o = grad_x + t * width, r = inverse_rms[t], dot = 0;
    if (weight) {
      for (long i = 0; i < width; i++) {
        o[i] = g[i] * weight[i];
        dot += o[i] * in[i];
      }
      float k = dot * r * r * r / width;
      for (long i = 0; i < width; i++) {
        o[i] = o[i] * r - in[i] * k;
        grad_weight[i] += g[i] * in[i] * r;
      }
    } else {
      for (long i = 0; i < width; i++) dot += g[i] * in[i];
      float k = dot * r * r * r / width;
      for (long i = 0; i < width; i++) o[i] = g[i] * r - in[i] * k;
    }
  }
}

/* rows hold [gate | up]; out = silu(min(gate, limit)) * clip(up, -limit, limit) */
void swiglu_forward(const float *x, float *out, long rows, long width, float limit) {
  for (long t = 0; t < rows; t++) {
    const float *gate = x + t * 2 * width, *up = gate + width;
    float *o = out + t * width;
    for (long i = 0; i < width; i++) {
      float a = gate[i] < limit ? gate[i] : limit, b = up[i] < limit ? up[i] : limit;
      b = b > -limit ? b : -limit;
      o[i] = a * b / (1.f + expf(-a));
    }
  }
}

void swiglu_backward(const float *x, const float *grad, float *grad_x, long rows, long width, float limit) {
  for (long t = 0; t < rows; t++) {
    const float *gate = x + t * 2 * width, *up = gate + width, *g = grad + t * width;
    float *grad_gate = grad_x + t * 2 * width, *grad_up = grad_gate + width;
    for (long i = 0; i < width; i++) {
      float a = gate[i] < limit ? gate[i] : limit, b = up[i] < limit ? up[i] : limit;
      b = b > -limit ? b : -limit;
      float s = 1.f / (1.f + expf(-a));
      grad_gate[i] = gate[i] < limit ? g[i] * b * (s + a * s * (1.f - s)) : 0.f;
      grad_up[i] = up[i] < limit && up[i] > -limit ? g[i] * a * s : 0.f;
    }
  }
}

/* Rotate adjacent pairs in the last `rotary` channels of every head; row t has position first + t % length.
 * angles holds (cos, sin) per position and pair; direction is +1 or -1. */
void rotate(const float *x, float *out, const float *angles, long rows, long length, long heads, long width, long rotary,
            long first, float direction) {
  long plain = width - rotary;
  for (long t = 0; t < rows; t++) {
    const float *angle = angles + (first + t % length) * (long)rotary;
    for (long h = 0; h < heads; h++) {
      const float *in = x + (t * heads + h) * width;
      float *o = out + (t * heads + h) * width;
      memcpy(o, in, plain * sizeof(float));
      for (long i = 0; i < rotary; i += 2) {
        float c = angle[i], s = direction * angle[i + 1], a = in[plain + i], b = in[plain + i + 1];
        o[plain + i] = a * c - b * s;
        o[plain + i + 1] = a * s + b * c;
      }
    }
  }
}
