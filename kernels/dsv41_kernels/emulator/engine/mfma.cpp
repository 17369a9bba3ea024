// Matrix fused multiply-add, scaled and not.
//
// Products are exact and are summed in f32, k ascending, one fma each; the chip's summation order
// is not published, so results may differ from it in the last bits. Integer forms are exact.
#include <algorithm>

#include "operands.h"
#ifdef __FMA__
#include <immintrin.h>
#endif

namespace {

enum Format { F32, F16, BF16, FP8, BF8, FP6, BF6, FP4, I8 };
constexpr int bits_of(Format f) {
  switch (f) {
    case F32: return 32;
    case F16: case BF16: return 16;
    case FP6: case BF6: return 6;
    case FP4: return 4;
    default: return 8;
  }
}

template <Format f>
float element(u32 x) {
  switch (f) {
    case F32: return as_f32(x);
    case F16: return f16_to_f32(static_cast<u16>(x));
    case BF16: return bf16_to_f32(static_cast<u16>(x));
    case FP8: return kMini.fp8[x];
    case BF8: return kMini.bf8[x];
    case FP6: return kMini.fp6[x];
    case BF6: return kMini.bf6[x];
    case FP4: return kMini.fp4[x];
    case I8: return static_cast<i8>(x);
  }
  return 0;
}

// One source matrix as f32: [k][index], index the row of A or the column of B.
template <int N>
struct Matrix {
  alignas(64) float value[128][N];
  u32 defined;  // per index

  // Lane l holds index l % N and a run of consecutive k. The 8-bit operands of the 16x16x128 and
  // 32x32x64 forms come as two runs of 16, half of K apart.
  void load(Wave &w, const Operand &o, Format format, int depth, bool two_runs) {
    switch (format) {
      case F32: return load<F32>(w, o, depth, two_runs);
      case F16: return load<F16>(w, o, depth, two_runs);
      case BF16: return load<BF16>(w, o, depth, two_runs);
      case FP8: return load<FP8>(w, o, depth, two_runs);
      case BF8: return load<BF8>(w, o, depth, two_runs);
      case FP6: return load<FP6>(w, o, depth, two_runs);
      case BF6: return load<BF6>(w, o, depth, two_runs);
      case FP4: return load<FP4>(w, o, depth, two_runs);
      case I8: return load<I8>(w, o, depth, two_runs);
    }
  }

 private:
  template <Format f>
  void load(Wave &w, const Operand &o, int depth, bool two_runs) {
    constexpr int width = bits_of(f);
    constexpr int groups = kLanes / N;
    const int per_lane = depth / groups;
    constexpr u32 mask = width == 32 ? ~0u : (1u << width) - 1;
    const int registers = per_lane * width / 32;
    u64 lanes = ~0ull;
    for (int r = 0; r < registers; r++) lanes &= w.defined[w.row_index(o, r)];
    u32 all = static_cast<u32>(lanes & lanes >> 32);
    if (N == 16) all &= all >> 16;
    defined = N == 16 ? all & 0xffff : all;
    for (int e = 0; e < per_lane; e++) {
      const int at = e * width, shift = at % 32;
      const u32 *low = w.row(o, at / 32);
      const u32 *high = shift + width > 32 ? w.row(o, at / 32 + 1) : low;
      for (int g = 0; g < groups; g++) {
        const int k = two_runs ? (e < 16 ? 0 : depth / 2) + 16 * g + (e & 15) : g * per_lane + e;
        for (int i = 0; i < N; i++) {
          u64 x = low[g * N + i];
          if (32 % width) x |= static_cast<u64>(high[g * N + i]) << 32;
          value[k][i] = element<f>(static_cast<u32>(x >> shift) & mask);
        }
      }
    }
  }
};

// Row of the result held in register r of lane l; the column is l % n.
constexpr int row_of(int n, int r, int l) {
  return n == 16 ? 4 * (l / 16) + r : 8 * (r / 4) + 4 * (l / 32) + (r & 3);
}

using Vector = float __attribute__((vector_size(32)));

inline Vector fused(Vector x, Vector y, Vector z) {
#ifdef __FMA__
  return _mm256_fmadd_ps(x, y, z);
#else
  for (int j = 0; j < 8; j++) z[j] = std::fma(x[j], y[j], z[j]);
  return z;
#endif
}

// sum += A B over k in [first, last), k ascending. Several rows at a time, for the sums of one row
// wait for each other.
template <int N>
void multiply(const Matrix<N> &a, const Matrix<N> &b, int first, int last, float (*sum)[N]) {
  constexpr int kRows = 64 / N, kVectors = N / 8;
  for (int i = 0; i < N; i += kRows) {
    Vector rows[kRows][kVectors];
    std::memcpy(rows, sum[i], sizeof rows);
    for (int k = first; k < last; k++) {
      const Vector *y = reinterpret_cast<const Vector *>(b.value[k]);
      for (int r = 0; r < kRows; r++) {
        const float x = a.value[k][i + r];
        for (int v = 0; v < kVectors; v++)
          rows[r][v] = fused(Vector{x, x, x, x, x, x, x, x}, y[v], rows[r][v]);
      }
    }
    std::memcpy(sum[i], rows, sizeof rows);
  }
}

struct Scales {
  float a[32][4], b[32][4];  // [index][block of 32 k]
  void load(Wave &w, const Inst &I, int n) {
    require_defined(w, I.src[3], 1, ~0ull, "a matrix scale");
    require_defined(w, I.src[4], 1, ~0ull, "a matrix scale");
    const Source A(w, I, 3), B(w, I, 4);
    const int byte_a = (I.op_sel & 1) | (I.op_sel_hi & 1) << 1;
    const int byte_b = (I.op_sel >> 1 & 1) | (I.op_sel_hi >> 1 & 1) << 1;
    FOR_LANES(l) {
      a[l % n][l / n] = e8m0_to_f32(A[l] >> (8 * byte_a) & 0xff);
      b[l % n][l / n] = e8m0_to_f32(B[l] >> (8 * byte_b) & 0xff);
    }
  }
};

template <int N>
void multiply_scaled(const Matrix<N> &a, const Matrix<N> &b, int depth, const Scales &scales,
                     float (*sum)[N]) {
  for (int block = 0; block < depth / 32; block++) {
    alignas(64) float part[N][N] = {};
    multiply<N>(a, b, 32 * block, 32 * block + 32, part);
    for (int i = 0; i < N; i++)
      for (int j = 0; j < N; j++)
        sum[i][j] += part[i][j] * (scales.a[i][block] * scales.b[j][block]);
  }
}

template <int N>
void write_result(Wave &w, const Inst &I, const Matrix<N> &a, const Matrix<N> &b, u64 c_defined[],
                  u32 (*result)[kLanes]) {
  for (int r = 0; r < N * N / kLanes; r++) {
    std::memcpy(w.row(I.dst[0], r), result[r], sizeof(Lanes));
    u64 defined = c_defined[r];
    if (~(a.defined & b.defined) & ((1ull << N) - 1))
      FOR_LANES(l)
        if (!bit(a.defined, row_of(N, r, l)) || !bit(b.defined, l % N)) defined &= ~(1ull << l);
    const u32 row = w.row_index(I.dst[0], r);
    w.defined[row] = defined;
    if (~defined) w.origin[row] = I.pc;
  }
}

bool in_registers(const Operand &o) { return o.kind == VGPR || o.kind == AGPR; }

template <int N>
void mfma(Wave &w, const Inst &I, int depth, Format fa, Format fb, bool scaled, bool wide) {
  Matrix<N> a, b;
  a.load(w, I.src[0], fa, depth, wide && bits_of(fa) == 8);
  b.load(w, I.src[1], fb, depth, wide && bits_of(fb) == 8);
  constexpr int kRegisters = N * N / kLanes;
  alignas(64) u32 result[kRegisters][kLanes];
  u64 c_defined[kRegisters];
  const Operand &c = I.src[2];
  for (int r = 0; r < kRegisters; r++) {
    c_defined[r] = in_registers(c) ? w.defined[w.row_index(c, r)] : ~0ull;
    if (in_registers(c)) {
      std::memcpy(result[r], w.row(c, r), sizeof(Lanes));
    } else {
      const u32 x = scalar32(w, c);
      FOR_LANES(l) result[r][l] = x;
    }
  }
  if (fa == I8) {
    for (int r = 0; r < kRegisters; r++) FOR_LANES(l) {
        const int i = row_of(N, r, l), j = l % N;
        i32 sum = 0;
        for (int k = 0; k < depth; k++)
          sum += static_cast<i32>(a.value[k][i]) * static_cast<i32>(b.value[k][j]);
        result[r][l] += static_cast<u32>(sum);
      }
  } else {
    alignas(64) float sum[N][N];
    for (int r = 0; r < kRegisters; r++)
      for (int l = 0; l < kLanes; l += N) std::memcpy(sum[row_of(N, r, l)], &result[r][l], 4 * N);
    if (scaled) {
      Scales scales;
      scales.load(w, I, N);
      multiply_scaled<N>(a, b, depth, scales, sum);
    } else {
      multiply<N>(a, b, 0, depth, sum);
    }
    for (int r = 0; r < kRegisters; r++)
      for (int l = 0; l < kLanes; l += N) std::memcpy(&result[r][l], sum[row_of(N, r, l)], 4 * N);
  }
  write_result<N>(w, I, a, b, c_defined, result);
}

Format low_precision(u32 code) {
  constexpr Format kFormats[] = {FP8, BF8, FP6, BF6, FP4};
  if (code > 4) fail("invalid", "matrix format code %u does not exist", code);
  return kFormats[code];
}

}  // namespace

#define MFMA(name, n, depth, format) \
  OPCODE(v_mfma_##name, OWN, 0) { mfma<n>(w, I, depth, format, format, false, false); }
MFMA(f32_16x16x4_f32, 16, 4, F32)
MFMA(f32_32x32x2_f32, 32, 2, F32)
MFMA(f32_16x16x16_f16, 16, 16, F16)
MFMA(f32_32x32x8_f16, 32, 8, F16)
MFMA(f32_16x16x32_f16, 16, 32, F16)
MFMA(f32_32x32x16_f16, 32, 16, F16)
MFMA(f32_16x16x16_bf16, 16, 16, BF16)
MFMA(f32_32x32x8_bf16, 32, 8, BF16)
MFMA(f32_16x16x32_bf16, 16, 32, BF16)
MFMA(f32_32x32x16_bf16, 32, 16, BF16)
MFMA(i32_16x16x32_i8, 16, 32, I8)
MFMA(i32_32x32x16_i8, 32, 16, I8)
MFMA(i32_16x16x64_i8, 16, 64, I8)
MFMA(i32_32x32x32_i8, 32, 32, I8)
#define MFMA8(types, fa, fb)                                                                     \
  OPCODE(v_mfma_f32_16x16x32_##types, OWN, 0) { mfma<16>(w, I, 32, fa, fb, false, false); }      \
  OPCODE(v_mfma_f32_32x32x16_##types, OWN, 0) { mfma<32>(w, I, 16, fa, fb, false, false); }
MFMA8(fp8_fp8, FP8, FP8)
MFMA8(fp8_bf8, FP8, BF8)
MFMA8(bf8_fp8, BF8, FP8)
MFMA8(bf8_bf8, BF8, BF8)
#define MFMA_F8F6F4(name, n, depth, scaled)                                                      \
  OPCODE(v_mfma_##name, OWN, 0) {                                                                \
    mfma<n>(w, I, depth, low_precision(I.cbsz), low_precision(I.blgp), scaled, true);            \
  }
MFMA_F8F6F4(f32_16x16x128_f8f6f4, 16, 128, false)
MFMA_F8F6F4(f32_32x32x64_f8f6f4, 32, 64, false)
MFMA_F8F6F4(scale_f32_16x16x128_f8f6f4, 16, 128, true)
MFMA_F8F6F4(scale_f32_32x32x64_f8f6f4, 32, 64, true)
