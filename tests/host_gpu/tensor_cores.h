/* SPDX-License-Identifier: Apache-2.0 */
/* What tensor cores compute, as far as it is known (Fasi, Higham, Mikaitis and Pranesh: Numerical behavior of NVIDIA
 * tensor cores, PeerJ Computer Science, 2021, and later work like it): products are exact. A few of them at a time and
 * the sum so far are cut off, toward 0, at one place, a bit or two below the last that f32 has of the largest of them;
 * they are added exactly, and the sum is cut off to f32. Numbers as they read them, and as they are made. For
 * cuda.h. */

template <class To, class From> inline To with_the_bits_of(From from)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// ---- numbers, rounded to nearest ----

inline float float_of_half(unsigned half)
{
    const float size = with_the_bits_of<float>((half & 0x7fff) << 13) * 0x1p112f;
    const unsigned bits = with_the_bits_of<unsigned>(size) | ((half & 0x7c00) == 0x7c00 ? 0x7f800000 : 0);
    return with_the_bits_of<float>(bits | (half & 0x8000) << 16);
}
inline unsigned halves(float low, float high) { return host_gpu_f16_of(low) | host_gpu_f16_of(high) << 16; }
inline float half_low(unsigned d) { return float_of_half(d & 0xffff); }
inline float half_high(unsigned d) { return float_of_half(d >> 16); }
inline unsigned brain_float_of(float x)
{
    const unsigned bits = with_the_bits_of<unsigned>(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline unsigned brain_floats(float low, float high) { return brain_float_of(low) | brain_float_of(high) << 16; }
inline unsigned tensor_float(float x)
{
    const unsigned bits = with_the_bits_of<unsigned>(x),
                   half = __CUDA_ARCH__ >= 900 ? 0xfff + (bits >> 13 & 1) : 0x1000; // halfway: to even, or away from 0
    return x != x ? 0x7fffffff : (bits + half) & ~0x1fffu;
}

// ---- numbers as they are read: EACH in a word, K in 32 bytes, TOGETHER of them added at once ----

enum { BITS_BELOW = __CUDA_ARCH__ >= 900 ? 2 : 1, TENSOR_PART = __CUDA_ARCH__ >= 900 ? 32 : 16 /* bytes */ };
struct number_f16 {
    enum { EACH_WORD = 2, K = 16, TOGETHER = TENSOR_PART / 2 };
    static inline float of(unsigned word, int i) { return float_of_half(word >> 16 * i & 0xffff); }
};
struct number_bf16 {
    enum { EACH_WORD = 2, K = 16, TOGETHER = TENSOR_PART / 2 };
    static inline float of(unsigned word, int i) { return with_the_bits_of<float>(word >> 16 * i << 16); }
};
struct number_tf32 {
    enum { EACH_WORD = 1, K = 8, TOGETHER = TENSOR_PART / 4 };
    static inline float of(unsigned word, int) { return with_the_bits_of<float>(word & ~0x1fffu); }
};

// ---- sums ----

typedef float eight_floats __attribute__((vector_size(32)));
typedef int eight_words __attribute__((vector_size(32)));
typedef double eight_doubles __attribute__((vector_size(64)));
typedef long long eight_longs __attribute__((vector_size(64)));

// The power of two that a number is 1 to 2 times as large as; 0 of denormals.
inline float power_below(float x) { return with_the_bits_of<float>(with_the_bits_of<unsigned>(x) & 0x7f800000); }

// 16 rows of 32 bytes, and 8 that become columns.
template <class Number> struct tensor_rows {
    float x[16][Number::K], power[16][Number::K];
    inline tensor_rows(const unsigned (&words)[16][8])
    {
        for (int i = 0; i < 16; ++i)
            for (int k = 0; k < Number::K; ++k) {
                x[i][k] = Number::of(words[i][k / Number::EACH_WORD], k % Number::EACH_WORD);
                power[i][k] = power_below(x[i][k]);
            }
    }
};
template <class Number> struct tensor_columns {
    eight_floats x[Number::K], power[Number::K];
    inline tensor_columns() {}
    inline tensor_columns(const unsigned (&words)[8][8])
    {
        for (int k = 0; k < Number::K; ++k)
            for (int j = 0; j < 8; ++j) {
                const float w = Number::of(words[j][k / Number::EACH_WORD], k % Number::EACH_WORD);
                x[k][j] = w;
                power[k][j] = power_below(w);
            }
    }
};

// What is not finite, or near the ends of f32's range: so that NaN and Inf come of what they should.
template <int COUNT> inline float rare_sum(float d, const float *a, const eight_floats *b, int j)
{
    float plain = d;
    double sum = d;
    for (int k = 0; k < COUNT; ++k)
        plain += a[k] * b[k][j], sum += (double)a[k] * b[k][j];
    return sum - sum == 0.0 ? (float)with_the_bits_of<double>(with_the_bits_of<long long>(sum) & -(1ll << 29)) : plain;
}

template <int COUNT>
inline eight_floats add_products(eight_floats d, const float *a, const float *power_a, const eight_floats *b,
                                 const eight_floats *power_b)
{
    enum { HALF = COUNT < 8 ? COUNT : 8, TO_UNITS = 23 + BITS_BELOW };
    eight_floats most = (eight_floats)((eight_words)d & 0x7f800000);
    for (int k = 0; k < COUNT; ++k) {
        const eight_floats p = power_a[k] * power_b[k];
        most = p > most ? p : most;
    }
    const eight_words usual = (most > 0x1p-90f) & (most < 0x1p90f);
    const eight_floats units = (eight_floats)(((254 + TO_UNITS) << 23) - (usual ? (eight_words)most : 127 << 23));
    const eight_floats kept = usual ? d : d * 0.0f;
    eight_words sum[2] = {__builtin_convertvector(kept * units, eight_words), {}}; // each has room for eight
    for (int k = 0; k < COUNT; ++k)
        sum[k / HALF] += __builtin_convertvector(a[k] * b[k] * units, eight_words);
    const eight_doubles whole =
        __builtin_convertvector(sum[0], eight_doubles) + __builtin_convertvector(sum[1], eight_doubles);
    const eight_doubles cut = (eight_doubles)((eight_longs)whole & -(1ll << 29)); // 24 bits are left
    eight_floats result = __builtin_convertvector(cut, eight_floats) / units;
    for (int j = 0; j < 8; ++j)
        if (!usual[j])
            result[j] = rare_sum<COUNT>(d[j], a, b, j);
    return result;
}

// d += a b^T
template <class Number>
inline void add_product(float (&d)[16][8], const tensor_rows<Number> &a, const tensor_columns<Number> &b)
{
    for (int i = 0; i < 16; ++i) {
        eight_floats sum;
        memcpy(&sum, d[i], sizeof sum);
        for (int k = 0; k < Number::K; k += Number::TOGETHER)
            sum = add_products<Number::TOGETHER>(sum, a.x[i] + k, a.power[i] + k, b.x + k, b.power + k);
        memcpy(d[i], &sum, sizeof sum);
    }
}
