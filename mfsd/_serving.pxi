# The serving simulator's step: the same arithmetic as mfsd.policy.serve and bench.sim.serving, in C. Included by
# _native.pyx. Each part names the Python function of which it is the twin. Operations on doubles are in the same order
# as there, so that results are equal to the bit (the build forbids contraction).
cimport cython
from libc.math cimport fabs
from libc.stdint cimport int64_t

from heapq import heappop as _heappop
from heapq import heappush as _heappush
from heapq import heapreplace as _heapreplace

cdef enum:
    SERVED_WAITING = 0
    SERVED_PROMPT = 1
    SERVED_DECODE = 2
    PACE_TERMS = 6
    PACE_SPLIT_TOKENS = 512

cdef double PACE_SHORTEST_S = 1e-6
cdef double PACE_LEAST = 1e-12
cdef double PACE_SCALE[6]
PACE_SCALE[:] = [1.0, 1e-3, 1e-3, 1e-2, 1e-5, 1e-6]
cdef int64_t REFUSED_NONE = (<int64_t>1) << 62


# ---- A call, and the part of it that a step computes -----------------------------------------------------------------


cdef class ServedCall:
    """The fields of a call that change while it is served. bench.sim.serving.live.Live adds the rest."""

    cdef public int64_t request_id, num_prompt_tokens, num_computed_tokens, num_cached_tokens, num_output_tokens
    cdef public int64_t prefill_left, folded, offset, end_round
    cdef public int state
    cdef public double arrival_s, due_s, first_due_s, output_tokens, service_s, since_busy_s
    cdef public object ttft_s, tbt_s, ttlt_s, first_token_s, record, request
    cdef public bint parked

    def found(self, int64_t tokens):
        self.num_computed_tokens = self.num_cached_tokens = min(tokens, self.num_prompt_tokens - 1)
        self.prefill_left = self.num_prompt_tokens - self.num_computed_tokens
        self.request = None

    cpdef int64_t produced(self, int64_t round_):
        return round_ - self.offset if self.state == SERVED_DECODE else self.num_output_tokens

    cpdef int64_t held(self, int64_t round_):
        if self.state == SERVED_DECODE:
            return self.num_prompt_tokens + round_ - self.offset - self.folded - 1
        return self.num_computed_tokens


@cython.final
cdef class ServedPiece:
    """Prompt tokens of a call that a step computes."""

    cdef readonly ServedCall live
    cdef readonly int64_t tokens

    def __init__(self, ServedCall live, int64_t tokens):
        self.live, self.tokens = live, tokens


cdef ServedPiece _served_piece(ServedCall live, int64_t tokens):
    cdef ServedPiece piece = ServedPiece.__new__(ServedPiece)
    piece.live, piece.tokens = live, tokens
    return piece


@cython.final
cdef class ServedDecision:
    """What a step computes: all decodes except the paused ones, and these pieces."""

    cdef readonly list pieces, paused
    cdef readonly object set_aside
    cdef readonly double step_s

    def __init__(self, list pieces, list paused, set_aside, double step_s):
        self.pieces, self.paused, self.set_aside, self.step_s = pieces, paused, set_aside, step_s


# ---- Step times: pace.py and fit.Step --------------------------------------------------------------------------------


ctypedef struct PaceFit:
    double terms[6]
    double inverse[36]
    int64_t steps


ctypedef struct StepSoFar:
    double small[4]
    double large[4]
    double margin
    double pairs
    int64_t prefill
    int64_t decodes
    bint full


cdef double _pace_dot(double *a, double *b) noexcept nogil:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4] + a[5] * b[5]


cdef void _pace_features(
    double *x, int64_t tokens, int64_t busiest, int64_t decodes, int64_t context, double pairs
) noexcept nogil:
    x[0] = 1.0
    x[1] = <double>tokens * PACE_SCALE[1]
    x[2] = <double>busiest * PACE_SCALE[2]
    x[3] = <double>decodes * PACE_SCALE[3]
    x[4] = <double>context * PACE_SCALE[4]
    x[5] = pairs * PACE_SCALE[5]


@cython.cdivision(True)
cdef void _pace_learn(PaceFit *piece, double *x, double seconds, double forget) noexcept nogil:
    """Twin of pace._learn."""
    cdef double px[6]
    cdef double seen, error, whole, share, s
    cdef double *row
    cdef int i, j
    for i in range(PACE_TERMS):
        x[i] = x[i] / seconds
    for i in range(PACE_TERMS):
        px[i] = _pace_dot(piece.inverse + i * PACE_TERMS, x)
    seen = _pace_dot(x, px)
    if seen <= PACE_LEAST:
        return
    error, whole = 1.0 - _pace_dot(piece.terms, x), 1.0 + seen
    share = (forget - (1.0 - forget) / seen) / (forget * whole)
    for i in range(PACE_TERMS):
        s, row = share * px[i], piece.inverse + i * PACE_TERMS
        for j in range(PACE_TERMS):
            row[j] = row[j] - s * px[j]
    for i in range(PACE_TERMS):
        piece.terms[i] = piece.terms[i] + px[i] * error / whole
    piece.steps += 1


@cython.cdivision(True)
cdef double _step_seconds_with(StepSoFar *step, int64_t tokens, int64_t context) noexcept nogil:
    """Twin of fit.Step.seconds_with, for one rank."""
    cdef int64_t prefill = step.prefill + tokens
    cdef double pairs = step.pairs + <double>tokens * (<double>context + <double>tokens / 2.0)
    cdef double *of = &step.large[0] if prefill + step.decodes > PACE_SPLIT_TOKENS else &step.small[0]
    cdef double seconds = of[0] + of[1] * <double>prefill + of[2] * <double>prefill + of[3] * pairs
    return step.margin * (seconds if seconds > PACE_SHORTEST_S else PACE_SHORTEST_S)


@cython.cdivision(True)
cdef void _step_add(StepSoFar *step, int64_t tokens, int64_t context) noexcept nogil:
    step.prefill += tokens
    step.pairs = step.pairs + <double>tokens * (<double>context + <double>tokens / 2.0)


cdef bint _step_exceeds(StepSoFar *step, int64_t tokens, double limit_s, double now_s) noexcept nogil:
    cdef int i
    cdef double least_s, other_s
    cdef int64_t until_split
    for i in range(1, 4):
        if not (step.small[i] >= 0 and step.large[i] >= 0):
            return False
    least_s, until_split = _step_seconds_with(step, tokens, 0), PACE_SPLIT_TOKENS - step.prefill - step.decodes
    if until_split >= tokens:
        other_s = _step_seconds_with(step, until_split + 1, 0)
        if other_s < least_s:
            least_s = other_s
    return now_s + least_s > limit_s and least_s > limit_s - now_s


@cython.cdivision(True)
cdef int64_t _largest_piece(
    StepSoFar *step, int64_t least, int64_t most, int64_t block, int64_t context, double room_s
) noexcept nogil:
    """Twin of chunk.largest: the largest piece whose step fits into `room_s`."""
    cdef int64_t low = 0, high = (most - least + block - 1) // block, middle
    while high - low > 1:
        middle = (low + high) // 2
        if _step_seconds_with(step, least + middle * block, context) <= room_s:
            low = middle
        else:
            high = middle
    return least + low * block
