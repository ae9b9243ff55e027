"""The Triton kernels of the gated memory without a delta; README.md has the equations.

`states_kernel` walks through spans and keeps the state, or its gradient, at each chunk; the others
then take all chunks at once. `i_` is a program's index, `p_` an address, `b_` a block of numbers,
`o_` offsets, `m_` a mask. DECAY is 0 for none, 1 per head, 2 per channel. Products take the
inputs' format and sum in float32; sums of g are exact.
"""

import os

import triton.language as tl

from statelab_kernels.jit import jit

# The format of the parts that exact sums are taken in; Triton's interpreter has no bf16.
PART: tl.constexpr = tl.constexpr(
    tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else tl.bfloat16
)
# Where neither half of a chunk decays by more than e^-40, decays are split in its middle.
WEAK: tl.constexpr = tl.constexpr(40.0)


@jit
def states_kernel(
    x, s, g, state, kept, weak, decay, spans,
    H, K: tl.constexpr, V: tl.constexpr,
    DECAY: tl.constexpr, REVERSE: tl.constexpr, PER_SPAN: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """S <- e^G S + (x decayed to the end)' s over a span, or in reverse S <- e^G S + (x e^G)' s.

    `state` is read and written in place. `kept` gets what each chunk finds, times the decay
    between it and the chunk's reference. Without `kept`, `state` gets what a span adds, and `decay`
    its whole decay.
    """
    i_s, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    i_k, i_v = tl.program_id(1), tl.program_id(2)
    start, length, chunk, i_n = _span(spans, i_s)
    o_k, o_v = i_k * BK + tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    o_c, m_k, m_v = tl.arange(0, C), o_k < K, o_v < V
    o_state, m_state = o_k[:, None] * V + o_v[None, :], m_k[:, None] & m_v[None, :]
    row = i_s if PER_SPAN else i_n
    p_state = state + (row.to(tl.int64) * H + i_h) * K * V + o_state
    if kept is None:
        b_S = tl.zeros([BK, BV], tl.float32)
        b_sum = tl.zeros([BK, BV], tl.float32)
    else:
        b_S = tl.load(p_state, mask=m_state, other=0)
    num_chunks = tl.cdiv(length, C)
    for i in range(0, num_chunks):
        i_c = num_chunks - 1 - i if REVERSE else i
        o_t = i_c * C + o_c
        m_t = o_t < length
        rows = (start + o_t).to(tl.int64) * H + i_h
        b_x, b_s = _tile(x, rows, o_k, m_t, K), _tile(s, rows, o_v, m_t, V)
        i_ch = (chunk + i_c).to(tl.int64) * H + i_h
        b_keep = b_S
        if DECAY == 2:
            b_g = _decays(g, rows, o_k, m_t, K)
            m_sum = o_c[None, :] <= o_c[:, None] if REVERSE else o_c[None, :] > o_c[:, None]
            b_xd = b_x * tl.exp(_sums(m_sum.to(PART), b_g))
            # In full tiles: products with ones are cheaper than sums across a multiprocessor.
            b_all = _column_sums(b_g, tl.full([C, BV], 1, PART))
            if kept is None:
                b_sum += b_all
            else:
                # Nothing where the block isn't weak: a branch would keep loads from running ahead.
                m_half = (o_c >= C // 2) if REVERSE else (o_c < C // 2)
                m_half &= tl.load(weak + i_ch * tl.num_programs(1) + i_k) != 0
                b_half = m_half[:, None].to(PART) * tl.full([C, BV], 1, PART)
                b_keep = b_S * tl.exp(_column_sums(b_g, b_half))
            b_S *= tl.exp(b_all)
        elif DECAY == 1:
            b_g = _head_decays(g, rows, m_t)
            b_xd = b_x * _head_edge(b_g, REVERSE, C)[:, None]
            b_all = tl.sum(b_g, 0)
            if kept is None:
                b_sum += b_all
            b_S *= tl.exp(b_all)
        else:
            b_xd = b_x
        if kept is not None:
            p_kept = kept + i_ch * K * V + o_state
            tl.store(p_kept, b_keep.to(kept.dtype.element_ty), mask=m_state)
        b_S = tl.dot(tl.trans(b_xd.to(b_x.dtype)), b_s, b_S, input_precision="tf32x3")
    tl.store(p_state, b_S, mask=m_state)
    if kept is None and DECAY != 0:
        p_decay = decay + (i_s.to(tl.int64) * H + i_h) * K + o_k
        tl.store(p_decay, tl.exp(tl.max(b_sum, 1)), mask=m_k & (i_v == 0))


@jit
def weak_kernel(
    g, weak, chunks, H, K: tl.constexpr, C: tl.constexpr, BK: tl.constexpr
):  # fmt: skip
    """Which blocks have their reference in the middle of the chunk."""
    i_ch, rows, m_t = _chunk(chunks, H, C)
    i_k, m_first = tl.program_id(1), (tl.arange(0, C) < C // 2)[:, None]
    b_g = _decays(g, rows, i_k * BK + tl.arange(0, BK), m_t, K).to(tl.float32)
    b_first = tl.sum(tl.where(m_first, b_g, 0), 0)
    b_second = tl.sum(tl.where(m_first, 0, b_g), 0)
    b_weak = tl.min(tl.minimum(b_first, b_second), 0) > -WEAK
    tl.store(weak + i_ch * tl.num_programs(1) + i_k, b_weak.to(tl.int32))


@jit
def scores_kernel(
    q, k, g, weak, scores, chunks,
    H, K: tl.constexpr,
    DECAY: tl.constexpr, C: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A_ij = sum_c q_ic D_ijc k_jc for j <= i of one chunk."""
    i_ch, rows, m_t = _chunk(chunks, H, C)
    o_c = tl.arange(0, C)
    b_A = tl.zeros([C, C], tl.float32)
    for i_k in range(0, tl.cdiv(K, BK)):
        o_k = i_k * BK + tl.arange(0, BK)
        b_q, b_k = _tile(q, rows, o_k, m_t, K), _tile(k, rows, o_k, m_t, K)
        if DECAY == 2:
            b_g = _decays(g, rows, o_k, m_t, K)
            if tl.load(weak + i_ch * tl.cdiv(K, BK) + i_k) != 0:
                b_sum = _middle_sums(b_g, C)
                b_qe = (b_q * tl.exp(b_sum)).to(b_q.dtype)
                b_ke = (b_k * tl.exp(-b_sum)).to(b_k.dtype)
                b_A = tl.dot(b_qe, tl.trans(b_ke), b_A, input_precision="tf32x3")
            else:
                b_A += _tree_scores(b_q, b_k, b_g, C)
        else:
            b_A = tl.dot(b_q, tl.trans(b_k), b_A, input_precision="tf32x3")
    if DECAY == 1:
        # Sums over j < l <= i, never differences.
        b_g = _head_decays(g, rows, m_t)
        m_after = o_c[:, None] > o_c[None, :]
        b_A *= tl.exp(tl.cumsum(tl.where(m_after, b_g[:, None], 0), 0))
    b_A = tl.where(o_c[:, None] >= o_c[None, :], b_A, 0)
    tl.store(_square(scores, i_ch, C), b_A.to(scores.dtype.element_ty))


@jit
def values_kernel(
    x, s, g, scores, states, weak, out, chunks,
    H, K: tl.constexpr, V: tl.constexpr,
    DECAY: tl.constexpr, REVERSE: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The reads o = q S + A v of one chunk; or in reverse, its gradient dv = k dS + A' do."""
    i_ch, rows, m_t = _chunk(chunks, H, C)
    o_v = tl.program_id(1) * BV + tl.arange(0, BV)
    b_o = tl.zeros([C, BV], tl.float32)
    for i_k in range(0, tl.cdiv(K, BK)):
        o_k = i_k * BK + tl.arange(0, BK)
        b_x = _tile(x, rows, o_k, m_t, K)
        if DECAY != 0:
            i_w = i_ch * tl.cdiv(K, BK) + i_k
            b_edge = _edge(g, weak, i_w, rows, o_k, m_t, K, DECAY, REVERSE, C)
            b_x = (b_x * b_edge).to(b_x.dtype)
        b_S = _state(states, i_ch, o_k, o_v, K, V)
        b_o = tl.dot(b_x, b_S, b_o, input_precision="tf32x3")
    b_A = tl.load(_square(scores, i_ch, C))
    if REVERSE:
        b_A = tl.trans(b_A)
    b_o = tl.dot(b_A, _tile(s, rows, o_v, m_t, V), b_o, input_precision="tf32x3")
    p_out = out + rows[:, None] * V + o_v[None, :]
    tl.store(p_out, b_o.to(out.dtype.element_ty), mask=m_t[:, None] & (o_v < V)[None, :])


@jit
def project_kernel(
    y, k, g, scores, states, weak, out, chunks,
    H, K: tl.constexpr, V: tl.constexpr,
    DECAY: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The reads w = S y of one chunk, where the scores are those of y with s."""
    i_ch, rows, m_t = _chunk(chunks, H, C)
    i_k = tl.program_id(1)
    o_k = i_k * BK + tl.arange(0, BK)
    b_w = tl.zeros([C, BK], tl.float32)
    for i_v in range(0, tl.cdiv(V, BV)):
        o_v = i_v * BV + tl.arange(0, BV)
        b_S = _state(states, i_ch, o_k, o_v, K, V)
        b_w = tl.dot(_tile(y, rows, o_v, m_t, V), tl.trans(b_S), b_w, input_precision="tf32x3")
    b_k, b_P = _tile(k, rows, o_k, m_t, K), tl.load(_square(scores, i_ch, C))
    if DECAY == 2:
        b_g = _decays(g, rows, o_k, m_t, K)
        if tl.load(weak + i_ch * tl.num_programs(1) + i_k) != 0:
            b_sum = _middle_sums(b_g, C)
            b_ke = (b_k * tl.exp(-b_sum)).to(b_k.dtype)
            b_w = tl.exp(b_sum) * tl.dot(b_P, b_ke, b_w, input_precision="tf32x3")
        else:
            b_w = b_w * tl.exp(_start_sums(b_g, C)) + _tree_mix(b_P, b_k, b_g, False, C)
    else:
        if DECAY == 1:
            b_w *= _head_edge(_head_decays(g, rows, m_t), True, C)[:, None]
        b_w = tl.dot(b_P, b_k, b_w, input_precision="tf32x3")
    p_out = out + rows[:, None] * K + o_k[None, :]
    tl.store(p_out, b_w.to(out.dtype.element_ty), mask=m_t[:, None] & (o_k < K)[None, :])


@jit
def keys_kernel(
    q, k, v, y, g, scores, before, after, weak, d_q, d_k, d_g, chunks,
    H, num_rows, K: tl.constexpr, V: tl.constexpr,
    DECAY: tl.constexpr, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The gradients of sum q' S y towards q, k and g; the scores are those of y with v.

    `after` is the gradient of the state after a chunk. A `g` per head gets one part of its
    gradient from each block of channels.
    """
    i_ch, rows, m_t = _chunk(chunks, H, C)
    i_k = tl.program_id(1)
    o_k, o_c = i_k * BK + tl.arange(0, BK), tl.arange(0, C)
    b_dq, b_dk = tl.zeros([C, BK], tl.float32), tl.zeros([C, BK], tl.float32)
    b_end = tl.zeros([BK], tl.float32)
    for i_v in range(0, tl.cdiv(V, BV)):
        o_v = i_v * BV + tl.arange(0, BV)
        b_S = _state(before, i_ch, o_k, o_v, K, V)
        b_dS = _state(after, i_ch, o_k, o_v, K, V)
        b_dq = tl.dot(_tile(y, rows, o_v, m_t, V), tl.trans(b_S), b_dq, input_precision="tf32x3")
        b_dk = tl.dot(_tile(v, rows, o_v, m_t, V), tl.trans(b_dS), b_dk, input_precision="tf32x3")
        if DECAY != 0:
            b_end += tl.sum(b_S.to(tl.float32) * b_dS, 1)
    b_q, b_k = _tile(q, rows, o_k, m_t, K), _tile(k, rows, o_k, m_t, K)
    b_P = tl.load(_square(scores, i_ch, C))
    b_Pt = tl.trans(b_P)
    if DECAY == 2:
        b_g = _decays(g, rows, o_k, m_t, K)
        if tl.load(weak + i_ch * tl.num_programs(1) + i_k) != 0:
            b_sum = _middle_sums(b_g, C)
            b_rows, b_keys = tl.exp(b_sum), tl.exp(-b_sum)
            b_qe, b_ke = (b_q * b_rows).to(b_q.dtype), (b_k * b_keys).to(b_k.dtype)
            b_end += tl.sum(b_k * b_keys * b_dk, 0)
            b_dq = b_rows * tl.dot(b_P, b_ke, b_dq, input_precision="tf32x3")
            b_dk = b_keys * tl.dot(b_Pt, b_qe, b_dk, input_precision="tf32x3")
        else:
            b_dq = b_dq * tl.exp(_start_sums(b_g, C)) + _tree_mix(b_P, b_k, b_g, False, C)
            b_dk *= tl.exp(_end_sums(b_g, C))
            b_end = b_end * tl.exp(tl.sum(b_g.to(tl.float32), 0)) + tl.sum(b_k * b_dk, 0)
            b_dk += _tree_mix(b_P, b_q, b_g, True, C)
    else:
        if DECAY == 1:
            b_gh = _head_decays(g, rows, m_t)
            b_dq *= _head_edge(b_gh, True, C)[:, None]
            b_dk *= _head_edge(b_gh, False, C)[:, None]
            b_end = b_end * tl.exp(tl.sum(b_gh, 0)) + tl.sum(b_k * b_dk, 0)
        b_dq = tl.dot(b_P, b_k, b_dq, input_precision="tf32x3")
        b_dk = tl.dot(b_Pt, b_q, b_dk, input_precision="tf32x3")
    o_rows, m_rows = rows[:, None] * K + o_k[None, :], m_t[:, None] & (o_k < K)[None, :]
    tl.store(d_q + o_rows, b_dq.to(d_q.dtype.element_ty), mask=m_rows)
    tl.store(d_k + o_rows, b_dk.to(d_k.dtype.element_ty), mask=m_rows)
    # What scaling each row and key would change. Exactly 0 at a reset.
    if DECAY == 2:
        m_later = (o_c[None, :] >= o_c[:, None]).to(PART)
        b_dg = _sums(m_later, b_q * b_dq - b_k * b_dk) + b_end[None, :]
        b_dg = tl.where(tl.exp(b_g.to(tl.float32)) == 0, 0, b_dg)
        tl.store(d_g + o_rows, b_dg.to(d_g.dtype.element_ty), mask=m_rows)
    elif DECAY == 1:
        b_dG = tl.sum(b_q * b_dq - b_k * b_dk, 1)
        m_later = o_c[None, :] >= o_c[:, None]
        b_dg = tl.sum(tl.where(m_later, b_dG[None, :], 0), 1) + tl.sum(b_end, 0)
        b_dg = tl.where(tl.exp(b_gh) == 0, 0, b_dg)
        tl.store(d_g + i_k.to(tl.int64) * num_rows + rows, b_dg, mask=m_t)


@jit
def recall_step_kernel(
    q, k, v, g, state, new_state, out,
    K: tl.constexpr, V: tl.constexpr, DECAY: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One token, V columns of the state: read once, written once."""
    i_nh, i_v = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_k, o_v = tl.arange(0, BK), i_v * BV + tl.arange(0, BV)
    b_S = _step(k, v, g, state, new_state, i_nh, o_k, o_v, K, V, DECAY)
    b_q = tl.load(q + i_nh * K + o_k, mask=o_k < K, other=0).to(tl.float32)
    b_o = tl.sum(b_S * b_q[:, None], 0)
    tl.store(out + i_nh * V + o_v, b_o.to(out.dtype.element_ty), mask=o_v < V)


@jit
def project_step_kernel(
    y, k, s, g, state, new_state, out,
    K: tl.constexpr, V: tl.constexpr, DECAY: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """One token, K rows of the state: read once, written once."""
    i_nh, i_k = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_k, o_v = i_k * BK + tl.arange(0, BK), tl.arange(0, BV)
    b_S = _step(k, s, g, state, new_state, i_nh, o_k, o_v, K, V, DECAY)
    b_y = tl.load(y + i_nh * V + o_v, mask=o_v < V, other=0).to(tl.float32)
    b_w = tl.sum(b_S * b_y[None, :], 1)
    tl.store(out + i_nh * K + o_k, b_w.to(out.dtype.element_ty), mask=o_k < K)


@jit
def _step(k, s, g, state, new_state, i_nh, o_k, o_v, K, V, DECAY: tl.constexpr):
    m_k, m_v = o_k < K, o_v < V
    o_state, m_state = i_nh * K * V + o_k[:, None] * V + o_v[None, :], m_k[:, None] & m_v[None, :]
    b_S = tl.load(state + o_state, mask=m_state, other=0)
    b_k = tl.load(k + i_nh * K + o_k, mask=m_k, other=0).to(tl.float32)
    b_s = tl.load(s + i_nh * V + o_v, mask=m_v, other=0).to(tl.float32)
    if DECAY == 2:
        b_g = tl.load(g + i_nh * K + o_k, mask=m_k, other=0).to(tl.float32)
        b_S *= tl.exp(b_g)[:, None]
    elif DECAY == 1:
        b_S *= tl.exp(tl.load(g + i_nh).to(tl.float32))
    b_S += b_k[:, None] * b_s[None, :]
    tl.store(new_state + o_state, b_S, mask=m_state)
    return b_S


@jit
def _span(spans, i_s):
    """First token, number of tokens, first chunk, sequence."""
    p = spans + i_s * 5
    return tl.load(p), tl.load(p + 1), tl.load(p + 3), tl.load(p + 4)


@jit
def _chunk(chunks, H, C: tl.constexpr):
    """Where this program's chunk has its state, its rows, and which of them are there."""
    i_c, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o_c = tl.arange(0, C)
    rows = (tl.load(chunks + 4 * i_c) + o_c).to(tl.int64) * H + i_h
    return i_c.to(tl.int64) * H + i_h, rows, o_c < tl.load(chunks + 4 * i_c + 1)


@jit
def _tile(x, rows, o_k, m_t, K: tl.constexpr):
    """Rows of x, zeros where there is no token or channel."""
    p = x + rows[:, None] * K + o_k[None, :]
    return tl.load(p, mask=m_t[:, None] & (o_k < K)[None, :], other=0)


@jit
def _state(kept, i_ch, o_k, o_v, K: tl.constexpr, V: tl.constexpr):
    p = kept + i_ch * K * V + o_k[:, None] * V + o_v[None, :]
    return tl.load(p, mask=(o_k < K)[:, None] & (o_v < V)[None, :], other=0)


@jit
def _decays(g, rows, o_k, m_t, K: tl.constexpr):
    """The decays g per channel; finite, for -inf times a 0 of a matrix of sums is NaN."""
    b_g = _tile(g, rows, o_k, m_t, K)
    return tl.maximum(b_g.to(tl.float32), -1e4).to(b_g.dtype)


@jit
def _head_decays(g, rows, m_t):
    return tl.maximum(tl.load(g + rows, mask=m_t, other=0).to(tl.float32), -1e4)


@jit
def _square(scores, i_ch, C: tl.constexpr):
    o_c = tl.arange(0, C)
    return scores + i_ch * C * C + o_c[:, None] * C + o_c[None, :]


@jit
def _sums(m, b_x):
    """The sums of rows of x that a matrix of 0, 1 and -1 names; exact, in three parts."""
    high = b_x.to(PART)
    b_o = tl.dot(m, high)
    if b_x.dtype != PART:
        rest = b_x - high.to(tl.float32)
        middle = rest.to(PART)
        b_o = tl.dot(m, middle, b_o)
        b_o = tl.dot(m, (rest - middle.to(tl.float32)).to(PART), b_o)
    return b_o


@jit
def _column_sums(b_x, m):
    """The sums of columns of x that a matrix of 0 and 1 names, as rows; exact, as `_sums`."""
    b_x = tl.trans(b_x)
    high = b_x.to(PART)
    b_o = tl.dot(high, m)
    if b_x.dtype != PART:
        rest = b_x - high.to(tl.float32)
        middle = rest.to(PART)
        b_o = tl.dot(middle, m, b_o)
        b_o = tl.dot((rest - middle.to(tl.float32)).to(PART), m, b_o)
    return b_o


@jit
def _start_sums(b_g, C: tl.constexpr):
    """From the start of the chunk to each token."""
    o_c = tl.arange(0, C)
    return _sums((o_c[None, :] <= o_c[:, None]).to(PART), b_g)


@jit
def _end_sums(b_g, C: tl.constexpr):
    """From each token to the end of the chunk."""
    o_c = tl.arange(0, C)
    return _sums((o_c[None, :] > o_c[:, None]).to(PART), b_g)


@jit
def _middle_sums(b_g, C: tl.constexpr):
    """From the middle of the chunk to each token; minus what is between for tokens before it."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    m_after, m_before = (j >= C // 2) & (j <= i), (j < C // 2) & (j > i)
    return _sums(tl.where(m_after, 1.0, tl.where(m_before, -1.0, 0.0)).to(PART), b_g)


@jit
def _head_edge(b_g, SINCE_START: tl.constexpr, C: tl.constexpr):
    """e^ the sum of g up to each token, or after it."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    m_sum = j <= i if SINCE_START else j > i
    return tl.exp(tl.sum(tl.where(m_sum, b_g[None, :], 0), 1))


@jit
def _edge(
    g, weak, i_w, rows, o_k, m_t,
    K: tl.constexpr, DECAY: tl.constexpr, KEYS: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The decay between the reference and each row, or each key and the reference."""
    if DECAY == 1:
        b_g = _head_decays(g, rows, m_t)
        b_edge = _head_edge(b_g, False, C) if KEYS else _head_edge(b_g, True, C)
        return b_edge[:, None]
    else:
        b_g = _decays(g, rows, o_k, m_t, K)
        i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
        m_after, m_before = (j >= C // 2) & (j <= i), (j < C // 2) & (j > i)
        m_weak = tl.where(m_after, 1.0, tl.where(m_before, -1.0, 0.0))
        if KEYS:
            m_sum = tl.where(tl.load(weak + i_w) != 0, -m_weak, tl.where(j > i, 1.0, 0.0))
        else:
            m_sum = tl.where(tl.load(weak + i_w) != 0, m_weak, tl.where(j <= i, 1.0, 0.0))
        return tl.exp(_sums(m_sum.to(PART), b_g))


@jit
def _level(b_g, level, C: tl.constexpr):
    """One level of the halving tree: decays of rows and keys, and the pairs that meet there."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    half = 1 << level
    m_row = (i & half != 0) & (j <= i) & (j >= ((i >> level) << level))
    m_key = (i & half == 0) & (j > i) & (j <= (i | (half - 1)))
    m_pair = (i & half != 0) & (j & half == 0) & ((i >> level) == (j >> level) + 1)
    b_rows = tl.exp(_sums(m_row.to(PART), b_g))
    return b_rows, tl.exp(_sums(m_key.to(PART), b_g)), m_pair


@jit
def _tree_scores(b_q, b_k, b_g, C: tl.constexpr):
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    b_A = tl.where(i == j, tl.sum(b_q.to(tl.float32) * b_k, 1)[:, None], 0)
    half = 1
    level = 0
    while half < C:
        b_rows, b_keys, m_pair = _level(b_g, level, C)
        b_qd, b_kd = (b_q * b_rows).to(b_q.dtype), (b_k * b_keys).to(b_k.dtype)
        b_A += tl.where(m_pair, tl.dot(b_qd, tl.trans(b_kd), input_precision="tf32x3"), 0)
        half *= 2
        level += 1
    return b_A


@jit
def _tree_mix(b_P, b_x, b_g, ROWS: tl.constexpr, C: tl.constexpr):
    """`_mix_rows` or `_mix_keys` by the tree."""
    i, j = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    b_o = tl.sum(tl.where(i == j, b_P, 0).to(tl.float32), 1)[:, None] * b_x
    half = 1
    level = 0
    while half < C:
        b_rows, b_keys, m_pair = _level(b_g, level, C)
        b_Pl = tl.where(m_pair, b_P, 0).to(b_x.dtype)
        if ROWS:
            b_xd = (b_x * b_rows).to(b_x.dtype)
            b_o += b_keys * tl.dot(tl.trans(b_Pl), b_xd, input_precision="tf32x3")
        else:
            b_xd = (b_x * b_keys).to(b_x.dtype)
            b_o += b_rows * tl.dot(b_Pl, b_xd, input_precision="tf32x3")
        half *= 2
        level += 1
    return b_o
