"""The Triton kernels of the running covariance; README.md has the equations.

`sums_kernel` walks through spans and keeps the sums at each chunk; the others then take all chunks
at once. `i_` is a program's index, `p_` an address, `b_` a block of numbers, `o_` offsets, `m_` a
mask. Products take the inputs' format and sum in float32.
"""

import triton.language as tl

from statelab_kernels.jit import jit


@jit
def sums_kernel(
    x, y, lam, mean_x, mean_y, position, second, first, left_first, kept_second, kept_first, spans,
    H, K: tl.constexpr,
    CENTER: tl.constexpr, BACKWARD: tl.constexpr, PER_SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The sums of a span, and what each of its chunks finds of them.

    Forward, x = y = k: sum k k' and sum k, kept as the scatter around the mean, which rounding to
    the inputs' format hurts least. Backward, from the end, x = q and y = dO: sum c (dO q' + q dO')
    and -sum c (dO (mu . q) + q (mu . dO)). Without `kept_second`, from nothing.
    """
    i_s, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    i_k, i_n = tl.program_id(1), tl.program_id(2)
    p = spans + 5 * i_s
    start, length, sequence = tl.load(p), tl.load(p + 1), tl.load(p + 4)
    i_ch = tl.load(p + 3).to(tl.int64) * H + i_h
    seen = tl.load(position + sequence).to(tl.float32) + tl.load(p + 2)
    o_k, o_n = i_k * BK + tl.arange(0, BK), i_n * BK + tl.arange(0, BK)
    o_c, m_k, m_n = tl.arange(0, C), o_k < K, o_n < K
    o_kn, m_kn = o_k[:, None] * K + o_n[None, :], m_k[:, None] & m_n[None, :]
    state = ((i_s if PER_SPAN else sequence).to(tl.int64) * H + i_h) * K
    # The sum of k as rows and as columns, in full tiles: products with ones are cheaper than sums
    # across a multiprocessor.
    b_S, b_ones = tl.zeros([BK, BK], tl.float32), tl.full([C, BK], 1, x.dtype.element_ty)
    b_fk, b_fn = b_S, b_S
    if kept_second is not None:
        b_S = tl.load(second + state * K + o_kn, mask=m_kn, other=0)
        b_fk += tl.load(first + state + o_k, mask=m_k, other=0)[:, None]
        b_fn += tl.load(first + state + o_n, mask=m_n, other=0)[None, :]
    p_first = o_n[None, :] + tl.zeros([BK, 1], tl.int32)
    m_first = m_n[None, :] & (o_k == 0)[:, None]
    num_chunks = tl.cdiv(length, C)
    for i in range(0, num_chunks):
        i_c = num_chunks - 1 - i if BACKWARD else i
        o_t = i_c * C + o_c
        m_t = o_t < length
        rows = (start + o_t).to(tl.int64) * H + i_h
        b_xk, b_xn = _tile(x, rows, o_k, m_t, K), _tile(x, rows, o_n, m_t, K)
        if kept_second is not None:
            b_keep = b_S
            if CENTER and not BACKWARD:
                b_keep -= b_fk * b_fn * (1 / tl.maximum(seen + i_c * C, 1))
            p_kept = kept_second + (i_ch + i_c.to(tl.int64) * H) * K * K + o_kn
            tl.store(p_kept, b_keep.to(kept_second.dtype.element_ty), mask=m_kn)
            tl.store(kept_first + (i_ch + i_c.to(tl.int64) * H) * K + p_first, b_fn, mask=m_first)
        if BACKWARD:
            b_c = _weight(lam, rows, m_t, seen + o_t + 1)
            b_yk, b_yn = _tile(y, rows, o_k, m_t, K), _tile(y, rows, o_n, m_t, K)
            b_ck, b_cn = (b_yk * b_c[:, None]).to(b_xk.dtype), (b_yn * b_c[:, None]).to(b_xk.dtype)
            b_S = tl.dot(tl.trans(b_ck), b_xn, b_S, input_precision="tf32x3")
            b_S = tl.dot(tl.trans(b_xk), b_cn, b_S, input_precision="tf32x3")
            if CENTER:  # noqa: SIM102 (only the outer one is decided by the compiler)
                if i_k == 0:
                    b_mx = tl.load(mean_x + rows, mask=m_t, other=0) * b_c
                    b_my = tl.load(mean_y + rows, mask=m_t, other=0) * b_c
                    b_fn -= tl.sum(b_yn * b_mx[:, None] + b_xn * b_my[:, None], 0)[None, :]
        else:
            b_S = tl.dot(tl.trans(b_xk), b_xn, b_S, input_precision="tf32x3")
            if CENTER:
                b_fk = tl.dot(tl.trans(b_xk), b_ones, b_fk, input_precision="tf32x3")
            b_fn = tl.dot(tl.trans(b_ones), b_xn, b_fn, input_precision="tf32x3")
    tl.store(second + state * K + o_kn, b_S, mask=m_kn)
    # Not in place, since other programs read it.
    tl.store(left_first + state + p_first, b_fn, mask=m_first)


@jit
def correct_kernel(
    x, k, lam, y, second, first, position, out, mean, dot_y, chunks,
    plain, H, num_rows, K: tl.constexpr,
    CENTER: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The output plain x - lam Sigma x; mu . x; and y . Sigma x if there is a y."""
    i_ch, rows, m_t, before = _chunk(chunks, position, H, C)
    i_n, o_c = tl.program_id(1), tl.arange(0, C)
    o_n, m_causal = i_n * BN + tl.arange(0, BN), o_c[:, None] >= o_c[None, :]
    b_P, b_o = tl.zeros([C, C], tl.float32), tl.zeros([C, BN], tl.float32)
    b_fx = tl.zeros([C], tl.float32)
    for i_k in range(0, tl.cdiv(K, BK)):
        o_k = i_k * BK + tl.arange(0, BK)
        b_x, b_k = _tile(x, rows, o_k, m_t, K), _tile(k, rows, o_k, m_t, K)
        b_S = _sums(second, i_ch, o_k, o_n, K)
        b_P = tl.dot(b_x, tl.trans(b_k), b_P, input_precision="tf32x3")
        b_o = tl.dot(b_x, b_S, b_o, input_precision="tf32x3")
        if CENTER:
            b_f = tl.load(first + i_ch * K + o_k, mask=o_k < K, other=0)
            b_fx += tl.sum(b_x * b_f[None, :], 1)
    b_r = 1 / (before + o_c + 1)
    b_P = tl.where(m_causal, b_P, 0)
    if CENTER:
        # mu . x is taken off each score before it is rounded.
        b_m = (b_fx + tl.sum(b_P, 1)) * b_r
        b_P = tl.where(m_causal, b_P - b_m[:, None], 0)
        tl.store(mean + rows, b_m, mask=m_t & (i_n == 0))
    b_xn, b_kn = _tile(x, rows, o_n, m_t, K), _tile(k, rows, o_n, m_t, K)
    b_o = tl.dot(b_P.to(b_kn.dtype), b_kn, b_o, input_precision="tf32x3")
    if CENTER:
        # Not before the last product, whose sum Triton 3.6 would lose it from.
        b_fn = tl.load(first + i_ch * K + o_n, mask=o_n < K, other=0)
        b_o += (b_fx / tl.maximum(before, 1) - b_m)[:, None] * b_fn[None, :]
    b_o *= b_r[:, None]
    if y is not None:
        b_y = _tile(y, rows, o_n, m_t, K)
        tl.store(dot_y + i_n.to(tl.int64) * num_rows + rows, tl.sum(b_y * b_o, 1), mask=m_t)
    b_lam = tl.load(lam + rows, mask=m_t, other=0).to(tl.float32)
    b_o = plain * b_xn - b_lam[:, None] * b_o
    p_out = out + rows[:, None] * K + o_n[None, :]
    tl.store(p_out, b_o.to(out.dtype.element_ty), mask=m_t[:, None] & (o_n < K)[None, :])


@jit
def keys_kernel(
    q, k, d_out, lam, mean_q, mean_d, second, first, position, d_k, chunks,
    H, K: tl.constexpr,
    CENTER: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradient of the keys, from the backward sums."""
    i_ch, rows, m_t, before = _chunk(chunks, position, H, C)
    o_c, o_n = tl.arange(0, C), tl.program_id(1) * BN + tl.arange(0, BN)
    m_causal = o_c[:, None] >= o_c[None, :]
    b_Pq, b_Pd = tl.zeros([C, C], tl.float32), tl.zeros([C, C], tl.float32)
    b_f = tl.load(first + i_ch * K + o_n, mask=o_n < K, other=0)
    b_dk = tl.zeros([C, BN], tl.float32) + b_f[None, :]
    for i_k in range(0, tl.cdiv(K, BK)):
        o_k = i_k * BK + tl.arange(0, BK)
        b_k, b_S = _tile(k, rows, o_k, m_t, K), _sums(second, i_ch, o_k, o_n, K)
        b_dk = tl.dot(b_k, b_S, b_dk, input_precision="tf32x3")
        b_k = tl.trans(b_k)
        b_Pq = tl.dot(_tile(q, rows, o_k, m_t, K), b_k, b_Pq, input_precision="tf32x3")
        b_Pd = tl.dot(_tile(d_out, rows, o_k, m_t, K), b_k, b_Pd, input_precision="tf32x3")
    if CENTER:
        b_Pq -= tl.load(mean_q + rows, mask=m_t, other=0)[:, None]
        b_Pd -= tl.load(mean_d + rows, mask=m_t, other=0)[:, None]
    b_c = _weight(lam, rows, m_t, before + o_c + 1)
    b_q, b_d = _tile(q, rows, o_n, m_t, K), _tile(d_out, rows, o_n, m_t, K)
    b_Pq = tl.where(m_causal, b_Pq * b_c[:, None], 0).to(b_q.dtype)
    b_Pd = tl.where(m_causal, b_Pd * b_c[:, None], 0).to(b_q.dtype)
    b_dk = tl.dot(tl.trans(b_Pq), b_d, b_dk, input_precision="tf32x3")
    b_dk = tl.dot(tl.trans(b_Pd), b_q, b_dk, input_precision="tf32x3")
    p_dk = d_k + rows[:, None] * K + o_n[None, :]
    tl.store(p_dk, b_dk.to(d_k.dtype.element_ty), mask=m_t[:, None] & (o_n < K)[None, :])


@jit
def step_kernel(
    q, k, lam, second, first, position, out, new_second, new_first,
    plain, H, K: tl.constexpr,
    CENTER: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One token: N rows of the sums are read, added to, read from, and written."""
    i_nh, i_b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_k, o_n = tl.arange(0, BK), i_b * BN + tl.arange(0, BN)
    m_k, m_n = o_k < K, o_n < K
    b_q = tl.load(q + i_nh * K + o_k, mask=m_k, other=0).to(tl.float32)
    b_k = tl.load(k + i_nh * K + o_k, mask=m_k, other=0).to(tl.float32)
    b_kn = tl.load(k + i_nh * K + o_n, mask=m_n, other=0).to(tl.float32)
    count = tl.load(position + i_nh // H).to(tl.float32) + 1
    o_second = i_nh * K * K + o_n[:, None] * K + o_k[None, :]
    m_second = m_n[:, None] & m_k[None, :]
    b_S = tl.load(second + o_second, mask=m_second, other=0) + b_kn[:, None] * b_k[None, :]
    tl.store(new_second + o_second, b_S, mask=m_second)
    b_fn = tl.load(first + i_nh * K + o_n, mask=m_n, other=0) + b_kn
    tl.store(new_first + i_nh * K + o_n, b_fn, mask=m_n)
    b_o = tl.sum(b_S * b_q[None, :], 1) / count
    if CENTER:
        b_f = tl.load(first + i_nh * K + o_k, mask=m_k, other=0) + b_k
        b_o -= b_fn / count * (tl.sum(b_f * b_q, 0) / count)
    b_qn = tl.load(q + i_nh * K + o_n, mask=m_n, other=0).to(tl.float32)
    b_o = plain * b_qn - tl.load(lam + i_nh).to(tl.float32) * b_o
    tl.store(out + i_nh * K + o_n, b_o.to(out.dtype.element_ty), mask=m_n)


@jit
def _chunk(chunks, position, H, C: tl.constexpr):
    """Where this program's chunk has its sums, its rows, which are there, and tokens before it."""
    i_c, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    p = chunks + 4 * i_c
    o_c = tl.arange(0, C)
    rows = (tl.load(p) + o_c).to(tl.int64) * H + i_h
    before = tl.load(position + tl.load(p + 3)).to(tl.float32) + tl.load(p + 2)
    return i_c.to(tl.int64) * H + i_h, rows, o_c < tl.load(p + 1), before


@jit
def _tile(x, rows, o_k, m_t, K: tl.constexpr):
    """Rows of x, zeros where there is no token or channel."""
    p = x + rows[:, None] * K + o_k[None, :]
    return tl.load(p, mask=m_t[:, None] & (o_k < K)[None, :], other=0)


@jit
def _sums(kept, i_ch, o_k, o_n, K: tl.constexpr):
    p = kept + i_ch * K * K + o_k[:, None] * K + o_n[None, :]
    return tl.load(p, mask=(o_k < K)[:, None] & (o_n < K)[None, :], other=0)


@jit
def _weight(lam, rows, m_t, b_n):
    """The weight -lam / n by which sum_j k_j (k_j . q) counts in the output."""
    return -tl.load(lam + rows, mask=m_t, other=0).to(tl.float32) / b_n
