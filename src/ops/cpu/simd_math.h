/* exp, tanh and gelu on the vectors of the simd_<isa>.h included before it; f32, a few units in the last place.
 *
 * exp(x) = 2^n exp(r), |r| <= ln(2)/2: the remainder in two parts (Cody and Waite), its exponential as the polynomial
 * of degree 7 of Cephes' expf: within 1 ulp, where the Taylor series of degree 6 is off by 2.8 at |r| near its limit. The scale is applied
 * in two halves, so that subnormal results come out right. */
#ifndef DG_OPS_CPU_SIMD_MATH_H
#define DG_OPS_CPU_SIMD_MATH_H

#ifdef VL

/* exp(c) / 2^t, where t is the whole number next to c / ln 2. */
static inline vf vf_exp_rest(vf c, vf t) {
    vf r = vf_fma(t, vf_set1(-0x1.62e400p-1f), c);
    r = vf_fma(t, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    return vf_fma(p * r, r, r) + vf_set1(1.0f);
}

static inline vf vf_exp(vf x) {
    vf c = vf_select(x > vf_set1(89.0f), vf_set1(89.0f), x); /* NaN stays */
    c = vf_select(c < vf_set1(-104.0f), vf_set1(-104.0f), c);
    vi n = vf_round_int(c * vf_set1(0x1.715476p+0f));
    vf p = vf_exp_rest(c, vi_float(n));
    vi half = n >> 1, rest = n - half;
    p = p * (vf)((half + 127) << 23) * (vf)((rest + 127) << 23);
    return vf_select(x == x, p, x);
}

/* tanh(x) = 1 - 2 / (exp(2|x|) + 1); a series where that would cancel. NaN stays, infinities give 1. */
static inline vf vf_tanh(vf x) {
    vf a = (vf)((vi)x & 0x7fffffff), big = vf_set1(1.0f) - vf_set1(2.0f) / (vf_exp(a + a) + vf_set1(1.0f));
    vf s = x * x, p = vf_set1(-5.70498872745e-3f);
    p = vf_fma(p, s, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, s, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, s, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, s, vf_set1(-3.33332819422e-1f));
    p = vf_fma(p * s, a, a);
    vf y = vf_select(a < vf_set1(0.625f), p, big);
    return (vf)((vi)y | ((vi)x & (vi)vf_set1(-0.0f)));
}

/* gelu_pytorch_tanh, as x / (1 + exp(-2u)): nothing cancels, and the far negative side goes to -0. */
static inline vf vf_gelu(vf x) {
    vf u = vf_set1(0.7978845608028654f) * vf_fma(vf_set1(0.044715f) * x * x, x, x);
    return x / (vf_set1(1.0f) + vf_exp(vf_set1(-2.0f) * u));
}

#endif
#endif
