# The order of waiting calls in the serving simulator: the C part of kept.Kept. Included by _native.pyx after
# _serving.pxi, which explains the rules for twins.


@cython.final
cdef class _ServedRows:
    """Gives rows (key, number, call) in order. With `ranked`, in the order of a greater alpha, sorted only as far as
    they are read: keys only grow with alpha, so no row from `at` on can have a new key below the old key at `at`."""

    cdef list rows, ready
    cdef Py_ssize_t at
    cdef bint ranked
    cdef double alpha

    cdef tuple next(self):
        cdef tuple old
        cdef ServedCall live
        cdef Py_ssize_t count = len(self.rows)
        if not self.ranked:
            if self.at >= count:
                return None
            self.at += 1
            return <tuple>self.rows[self.at - 1]
        while self.at < count:
            old = <tuple>self.rows[self.at]
            if self.ready and <double>(<tuple>self.ready[0])[0] < <double>old[0]:
                return <tuple>_heappop(self.ready)
            live = <ServedCall>old[2]
            _heappush(self.ready, (live.due_s + self.alpha * <double>live.prefill_left, old[1], live))
            self.at += 1
        if self.ready:
            return <tuple>_heappop(self.ready)
        return None


cdef _ServedRows _served_rows(list rows, bint ranked, double alpha):
    cdef _ServedRows source = _ServedRows.__new__(_ServedRows)
    source.rows, source.at, source.ranked, source.alpha = rows, 0, ranked, alpha
    source.ready = [] if ranked else None
    return source


cdef bint _row_before(tuple a, tuple b):
    cdef double x = <double>a[0], y = <double>b[0]
    return x < y or (x == y and <int64_t>a[1] < <int64_t>b[1])


@cython.final
cdef class _ServedWalk:
    """Gives calls in the order of plan_step: the overdue ones, `first`, then the order merged with what has begun, and
    last, in order, those that are set aside. Ends when the step is full, since nothing here needs to know which calls
    were refused for want of memory."""

    cdef list overdue, first, begun, later
    cdef set done, done_first
    cdef dict waiting
    cdef _ServedRows rows, expired
    cdef tuple row
    """The next row of `rows` or `expired`, read but not yet given."""
    cdef Py_ssize_t at, at_overdue, at_begun, at_later
    cdef int phase
    cdef bint sets_aside
    cdef double from_s, each

    cdef ServedCall next(self, StepSoFar *step):
        cdef ServedCall live
        cdef tuple row
        if self.phase == 0:
            while self.overdue is not None and self.at_overdue < len(self.overdue):
                live = <ServedCall>(<tuple>self.overdue[self.at_overdue])[2]
                self.at_overdue += 1
                if live.state == SERVED_PROMPT or (live.state == SERVED_WAITING and live.request_id in self.waiting):
                    return live
            if self.at < len(self.first):
                self.at += 1
                return <ServedCall>self.first[self.at - 1]
            self.phase, self.row = 1, self.rows.next()
        while self.phase == 1:
            row = self._merged(self.begun, &self.at_begun, self.rows)
            if row is None:
                self.phase, self.row = 2, self.expired.next()
                break
            if step.full:
                return None
            if self._is_done(row):
                continue
            live = <ServedCall>row[2]
            if (
                self.sets_aside
                and live.state == SERVED_WAITING
                and self.from_s + <double>live.prefill_left * self.each > live.due_s
            ):
                self.later.append(row)
            else:
                return live
        while True:
            row = self._merged(self.later, &self.at_later, self.expired)
            if row is None or step.full:
                return None
            if not self._is_done(row):
                return <ServedCall>row[2]

    cdef bint _is_done(self, tuple row) except -1:
        return (self.overdue is not None and row[1] in self.done) or (
            self.done_first is not None and row[1] in self.done_first
        )

    cdef tuple _merged(self, list own, Py_ssize_t *at, _ServedRows others):
        cdef tuple row = self.row
        if at[0] < len(own) and (row is None or _row_before(<tuple>own[at[0]], row)):
            at[0] += 1
            return <tuple>own[at[0] - 1]
        if row is not None:
            self.row = others.next()
        return row


cdef int64_t _wanted(ServedCall live) noexcept:
    """Twin of fence.held_tokens, without a bound on outputs."""
    return live.num_prompt_tokens + live.num_output_tokens - live.folded


def _by_number(ServedCall live):
    return live.request_id


def _by_deadline(ServedCall live):
    return (live.due_s, live.request_id)


@cython.cdivision(True)
cdef class KeptQueue:
    """The part of a planner that runs each step. It makes the plans of plan_step without reading the whole queue. Its
    subclass bench.sim.serving.kept.Kept does what happens once per call, and implements `expire` and `overdue`."""

    cdef bint hybrid, minds, sets_aside, fcfs, shortest_first, renewed, of_first, cuts
    cdef int preemption
    cdef int64_t step_tokens, requests_max, chunk_min, chunk_max, chunk_block, chunk_tight, kv_tight, skips_max
    cdef int64_t overdue_every
    cdef double margin, forget, alpha_low, alpha_high, load_low, load_high, kv_margin
    cdef double each, fixed, alone_each
    cdef PaceFit small, large
    cdef readonly int64_t step
    cdef list low_rows, low_expired, high_rows, high_expired
    cdef dict waiting
    cdef readonly list by_due, by_budget, by_cached, by_left, limits
    cdef public list overdue_rows
    cdef public set overdue_numbers
    cdef double now_s
    cdef bint limited
    cdef double limit_s
    cdef StepSoFar so_far
    cdef list chosen
    """Pieces of the step that is being planned."""
    cdef ServedCall reserved
    """The call of plan.ServeState.reserved."""
    cdef readonly int64_t rest_steps
    """plan.ServeState.rest_steps."""
    cdef int64_t rest_each

    def __init__(self, config, int64_t rest_each, list low, list high):
        """low, high: [rows, expired rows] in the order of the least and of the greatest alpha. rest_each:
        fence.REST_STEPS."""
        self.rest_each = rest_each
        self.hybrid, self.minds = config.policy.value == "hybrid", config.policy.value == "fit"
        self.fcfs, self.shortest_first = config.policy.value == "fcfs", config.policy.value == "srpf"
        self.sets_aside = config.relegation.value == "lost"
        self.renewed = config.token_deadline.value == "renewed"
        self.of_first = config.token_deadline.value == "first-token"
        self.cuts = config.cut_prompts
        self.preemption = ("off", "selective", "always").index(config.preemption.value)
        self.step_tokens, self.requests_max = config.step_tokens, config.requests_max
        self.chunk_min, self.chunk_max, self.chunk_block = config.chunk_min, config.chunk_max, config.chunk_block
        self.chunk_tight, self.kv_tight, self.skips_max = config.chunk_tight, config.kv_tight_tokens, config.skips_max
        self.overdue_every, self.margin, self.forget = config.overdue_every, config.pace_margin, config.pace_forget
        self.alpha_low, self.alpha_high = config.alpha_low_s, config.alpha_high_s
        self.load_low, self.load_high, self.kv_margin = config.load_low, config.load_high, config.kv_margin
        self.low_rows, self.low_expired = low
        self.high_rows, self.high_expired = high
        self.by_due, self.by_budget, self.by_cached, self.by_left, self.limits = [], [], [], [], []
        self.overdue_rows, self.overdue_numbers = [], set()

    def expire(self, double now_s):
        """Called when the deadline of a waiting call has passed. The subclass moves such calls to the expired rows."""

    def overdue(self, double now_s):
        """Brings `overdue_rows`, ordered by deadline, and `overdue_numbers` up to date. They may contain calls that no
        longer wait."""

    def start(self, int64_t step, small, large, ServedCall reserved, int64_t rest_steps):
        """Begins at this step, with these pieces of a Pace. Memory is kept for `reserved`, and then for no other call in
        `rest_steps` steps."""
        self.step, self.reserved, self.rest_steps = step, reserved, rest_steps
        _pace_read(&self.small, small)
        _pace_read(&self.large, large)
        self._measure()

    def pieces(self):
        """Returns (terms, inverse, steps) of both pieces of the Pace."""
        return _pace_numbers(&self.small), _pace_numbers(&self.large)

    # what is learned and estimated

    cdef void _learn(self, StepLoop loop) noexcept:
        cdef double x[6]
        cdef int64_t tokens = loop.seen_prefill + loop.seen_decodes
        if not 0 < loop.seen_s < 3600:
            return
        _pace_features(x, tokens, loop.seen_prefill, loop.seen_decodes, loop.seen_context, loop.seen_pairs)
        _pace_learn(&self.small if tokens <= PACE_SPLIT_TOKENS else &self.large, x, loop.seen_s, self.forget)

    cdef double _prompts_s(self, int64_t tokens, double pairs) noexcept:
        cdef double x[6]
        cdef double seconds
        cdef bint small = tokens <= PACE_SPLIT_TOKENS
        if (self.small.steps if small else self.large.steps) == 0:
            small = not small
        _pace_features(x, tokens, tokens, 0, 0, pairs)
        seconds = _pace_dot(&self.small.terms[0] if small else &self.large.terms[0], x)
        return seconds if seconds > PACE_SHORTEST_S else PACE_SHORTEST_S

    cdef void _measure(self) noexcept:
        """Twin of pace.prefill_s_per_token and pace.alone."""
        cdef double short_s, long_s
        self.each = self._prompts_s(self.step_tokens, 500.0 * <double>self.step_tokens) / <double>self.step_tokens
        if self.sets_aside:
            short_s, long_s = self._prompts_s(600, 180000.0), self._prompts_s(2000, 2000000.0)
            self.alone_each = (long_s - short_s) / 1400.0
            if not self.alone_each > 0.0:
                self.alone_each = 0.0
            self.fixed = short_s - self.alone_each * 600.0
            if not self.fixed > 0.0:
                self.fixed = 0.0

    cdef void _open(self, int64_t decodes, int64_t context) noexcept:
        """Twin of fit.Step.__init__."""
        cdef StepSoFar *step = &self.so_far
        step.margin, step.prefill, step.decodes, step.pairs, step.full = self.margin, 0, decodes, 0.0, False
        self._constants(step.small, &self.small if self.small.steps else &self.large, decodes, context)
        self._constants(step.large, &self.large if self.large.steps else &self.small, decodes, context)

    cdef void _constants(self, double *of, PaceFit *fit, int64_t decodes, int64_t context) noexcept:
        of[0] = fit.terms[0] + (fit.terms[1] * PACE_SCALE[1] + fit.terms[3] * PACE_SCALE[3]) * <double>decodes
        of[0] = of[0] + fit.terms[4] * PACE_SCALE[4] * <double>context
        of[1], of[2], of[3] = (
            fit.terms[1] * PACE_SCALE[1], fit.terms[2] * PACE_SCALE[2], fit.terms[5] * PACE_SCALE[5]
        )

    # the plan

    cdef ServedDecision decide(self, StepLoop loop, double now_s):
        cdef int64_t decodes = len(loop.decodes), room, chunk, shortest = 1
        cdef list begun, first, aside
        cdef _ServedWalk walk
        cdef ServedPiece piece
        cdef ServedCall live
        if loop.seen:
            loop.seen = False
            self._learn(loop)
            self._measure()
        self.now_s = now_s
        begun = sorted(loop.prompts.values(), key=_by_number) if len(loop.prompts) > 1 else list(loop.prompts.values())
        self.limited = False
        if decodes:
            self._limit(loop)
        if self.sets_aside and self.by_due and <double>(<tuple>self.by_due[0])[0] < now_s:
            self.expire(now_s)
        walk = self._walk(loop, begun)
        self._open(decodes, loop.context)
        room = max(0, self.step_tokens - decodes)
        if self.step % self.overdue_every == 0 and not self.fcfs:
            self.overdue(now_s)
            if self.overdue_rows:
                walk.overdue, walk.done, walk.waiting = self.overdue_rows, self.overdue_numbers, self.waiting
        if self.reserved is not None:
            self._reserve(walk)
        self.rest_steps = max(0, self.rest_steps - 1) if self.reserved is None else self.rest_steps + self.rest_each
        walk.first = first = self._first(begun, room, walk.done)
        chunk = self._chunk(loop, begun, room)
        if first:
            walk.done_first = {live.request_id for live in first}
        if self.minds:
            shortest = self._shortest(begun)
        self.chosen = []
        self._fill(loop, walk, None, begun, chunk, shortest)
        if not self.chosen and begun:
            self._fill(loop, None, sorted(begun, key=_by_deadline), begun, chunk, 1)
        self.step += 1
        aside = []
        if self.sets_aside:
            for piece in self.chosen:
                live = piece.live
                if (
                    live.state == SERVED_WAITING
                    and now_s + self.fixed + <double>live.prefill_left * self.alone_each > live.due_s
                ):
                    aside.append(live.request_id)
        return ServedDecision(self.chosen, [], aside, _step_seconds_with(&self.so_far, 0, 0))

    cdef int _reserve(self, _ServedWalk walk) except -1:
        """Twin of plan._overdue: the call that memory is kept for goes first, unless it no longer waits."""
        cdef ServedCall live = self.reserved
        cdef tuple row
        cdef list rows
        if live.state != SERVED_WAITING or live.request_id not in self.waiting:
            self.reserved = None
            return 0
        rows = [(live.due_s, live.request_id, live)]
        for row in walk.overdue or ():
            if row[2] is not live:
                rows.append(row)
        walk.overdue, walk.done, walk.waiting = rows, {live.request_id, *(walk.done or ())}, self.waiting
        return 0

    @property
    def reserved_number(self):
        """The number of the call that memory is kept for, or None."""
        return None if self.reserved is None else self.reserved.request_id

    cdef void _limit(self, StepLoop loop):
        """Sets `limit_s` to the earliest deadline of all decodes. An entry of the heap is brought up to date only when
        it is the least."""
        cdef list limits = self.limits
        cdef tuple top
        cdef ServedCall live
        cdef double due_s = 0.0
        while limits:
            top = <tuple>limits[0]
            live = <ServedCall>top[2]
            if live.state != SERVED_DECODE:
                _heappop(limits)
                continue
            live.num_output_tokens = loop.round - live.offset
            if not self._token_due(live, &due_s):
                _heappop(limits)
            elif due_s <= <double>top[0]:
                self.limited, self.limit_s = True, due_s
                return
            else:
                _heapreplace(limits, (due_s, top[1], live))

    cdef bint _token_due(self, ServedCall live, double *due_s) except -1:
        """Twin of deadlines.next_token_due_s. Returns whether there is a deadline."""
        cdef double first, since, whole, expected, share, made = <double>live.num_output_tokens + 1.0
        cdef bint due = False
        if live.tbt_s is not None:
            first = live.first_due_s
            if live.first_token_s is not None:
                since = live.first_token_s
                if self.of_first or (self.renewed and since > first):
                    first = since
            due, due_s[0] = True, first + <double>live.num_output_tokens * <double>live.tbt_s
        if live.ttlt_s is not None:
            since = live.due_s if live.first_token_s is None else <double>live.first_token_s
            whole = live.arrival_s + <double>live.ttlt_s
            if whole > since and whole > self.now_s:
                expected = made if made > live.output_tokens else live.output_tokens
                share = since + (whole - since) * made / expected
                if not due or share < due_s[0]:
                    due, due_s[0] = True, share
        return due

    cdef _ServedWalk _walk(self, StepLoop loop, list begun):
        cdef _ServedWalk walk = _ServedWalk.__new__(_ServedWalk)
        cdef double alpha = 0.0
        cdef bint ranked = False
        cdef list rows = self.low_rows, expired = self.low_expired
        if self.hybrid:
            alpha = self._alpha(self.each * <double>loop.left_tokens, self._tightest(begun))
            if alpha == self.alpha_low:
                pass
            elif alpha == self.alpha_high:
                rows, expired = self.high_rows, self.high_expired
            else:
                ranked = True
        walk.rows, walk.expired = _served_rows(rows, ranked, alpha), _served_rows(expired, ranked, alpha)
        walk.begun, walk.later = self._begun_rows(begun, alpha), []
        walk.sets_aside, walk.from_s, walk.each = self.sets_aside, self.now_s + self.fixed, self.alone_each
        return walk

    cdef list _begun_rows(self, list begun, double alpha):
        cdef list rows = []
        cdef ServedCall live
        for live in begun:
            rows.append((self._key(live, alpha), live.request_id, live))
        if len(rows) > 1:
            rows.sort()
        return rows

    cdef double _key(self, ServedCall live, double alpha) noexcept:
        """Twin of the key in kept.Order.row."""
        if self.hybrid:
            return live.due_s + alpha * <double>live.prefill_left
        if self.fcfs:
            return live.arrival_s
        return <double>live.prefill_left if self.shortest_first else live.due_s

    cdef double _alpha(self, double queued_s, double tightest_s) noexcept:
        """Twin of keys.alpha_s."""
        cdef double load = queued_s / tightest_s if tightest_s > 0 else self.load_high, share
        if self.load_high <= self.load_low:
            share = 1.0 if load >= self.load_high else 0.0
        else:
            share = (load - self.load_low) / (self.load_high - self.load_low)
            share = share if share > 0.0 else 0.0
            share = share if share < 1.0 else 1.0
        return self.alpha_low + share * (self.alpha_high - self.alpha_low)

    cdef double _tightest(self, list begun):
        """Twin of keys.tightest_budget_s."""
        cdef double least = 0.0, budget
        cdef bint found = self._waiting_top(self.by_budget, False)
        cdef ServedCall live
        if found:
            least = <double>(<tuple>self.by_budget[0])[0]
        for live in begun:
            budget = live.first_due_s - live.arrival_s
            if not found or budget < least:
                found, least = True, budget
        return least

    cdef bint _waiting_top(self, list heap, int reads) except -1:
        """Drops entries from the top of the heap that are of no waiting call, or whose key is out of date. `reads` is
        the kind of key: 1, the tokens computed, negative; 2, the tokens left; 0, one that does not change. Returns
        whether an entry is left."""
        cdef tuple top
        cdef ServedCall live
        while heap:
            top = <tuple>heap[0]
            live = <ServedCall>top[2]
            if live.state == SERVED_WAITING and top[1] in self.waiting and (
                reads == 0
                or (reads == 1 and -<double>top[0] == <double>live.num_computed_tokens)
                or (reads == 2 and <double>top[0] == <double>live.prefill_left)
            ):
                return True
            _heappop(heap)
        return False

    cdef int64_t _longest(self, list begun) except -1:
        cdef int64_t longest = 0, top
        cdef ServedCall live
        for live in begun:
            longest = max(longest, live.num_computed_tokens)
        if self._waiting_top(self.by_cached, 1):
            top = <int64_t>(-<double>(<tuple>self.by_cached[0])[0])
            longest = max(longest, top)
        return longest

    cdef int64_t _shortest(self, list begun) except -1:
        """Returns the tokens left of the prompt with the fewest left."""
        cdef int64_t least = -1
        cdef ServedCall live
        if self._waiting_top(self.by_left, 2):
            least = <int64_t>(<double>(<tuple>self.by_left[0])[0])
        for live in begun:
            if least < 0 or live.prefill_left < least:
                least = live.prefill_left
        return least if least >= 0 else 1

    cdef list _first(self, list begun, int64_t room, set before):
        """Twin of plan._first, without the overdue calls, whose numbers are `before`."""
        cdef list first = []
        cdef ServedCall live
        cdef double whole_s, slack_s
        if self.preemption == 2 or not begun:
            return first
        if self.preemption == 0:
            return [live for live in begun if before is None or live.request_id not in before]
        whole_s = _step_seconds_with(&self.so_far, 0, 0) + self.margin * <double>room * self.each
        for live in sorted(begun, key=_by_deadline) if len(begun) > 1 else begun:
            slack_s = live.due_s - self.now_s - <double>live.prefill_left * self.each
            if 0 <= slack_s < whole_s and (before is None or live.request_id not in before):
                first.append(live)
        return first

    cdef int64_t _chunk(self, StepLoop loop, list begun, int64_t room) except -1:
        """Twin of chunk.chunk_tokens."""
        cdef int64_t most = min(room, self.chunk_max), least, context
        cdef double slack_s
        if loop.kv_limited and loop.kv_tokens - loop.memory.parked - loop.memory.held < self.kv_tight:
            most = min(most, self.chunk_tight)
        least = min(self.chunk_min, most)
        if self.minds or not self.limited:
            return max(0, most)
        context, slack_s = self._longest(begun), self.limit_s - self.now_s
        if most <= least or _step_seconds_with(&self.so_far, most, context) <= slack_s:
            return max(0, most)
        return _largest_piece(&self.so_far, least, most, self.chunk_block, context, slack_s)

    cdef int _fill(
        self, StepLoop loop, _ServedWalk walk, list order, list begun, int64_t budget, int64_t shortest
    ) except -1:
        """Twin of fit.fill. Takes calls from the walk, or from the list `order` if there is no walk."""
        cdef StepSoFar *step = &self.so_far
        cdef ServedCall live
        cdef int64_t left = budget, skipped = 0, refused = REFUSED_NONE, need, take, block
        cdef int64_t held = loop.wanted, slots, running = len(begun) + len(loop.decodes), at = 0, inside = 0
        cdef bint tried = False, limited = self.limited
        cdef double limit_s = self.limit_s
        cdef ServedCall kept = self.reserved if walk is not None else None
        cdef int64_t others
        for live in begun:
            held += live.num_output_tokens
        slots = self.requests_max - running
        while left > 0 and skipped <= self.skips_max:
            if walk is None:
                live = <ServedCall>order[at] if at < len(order) else None
                at += 1
            else:
                live = walk.next(step)
            if live is None:
                break
            need = live.prefill_left
            if not self.cuts and need > left and (self.chosen or need <= budget):
                break
            if live.state != SERVED_PROMPT:
                others = 0 if kept is None or live is kept else _wanted(kept)
                if slots <= (others > 0) or not self._fits(loop, live, held + others, running == 0 and inside == 0):
                    if self.reserved is None and not self.rest_steps and walk.phase == 0 and self._ever_fits(loop, live):
                        self.reserved = live
                    if self.fcfs:
                        slots = 0
                    skipped += 1
                    continue
                if live is kept:
                    self.reserved = kept = None
                held, slots, inside = held + _wanted(live), slots - 1, inside + 1
            take = min(need, left)
            if take >= refused:
                skipped += 1
                continue
            if (
                self.minds and limited
                and self.now_s + _step_seconds_with(step, take, live.num_computed_tokens) > limit_s
            ):
                take = self._piece(live, take, limit_s - self.now_s)
                if take == 0:
                    skipped += 1
                    if not tried:
                        tried, block = True, min(self.chunk_block, left)
                        if _step_exceeds(step, block, limit_s, self.now_s):
                            refused = block
                            step.full = shortest >= block or _step_exceeds(step, shortest, limit_s, self.now_s)
                    continue
            _step_add(step, take, live.num_computed_tokens)
            tried, refused = False, REFUSED_NONE
            self.chosen.append(_served_piece(live, take))
            left -= take
            if self.minds and take == need and self.now_s + _step_seconds_with(step, 0, 0) <= live.due_s:
                limit_s, limited = live.due_s if not limited or live.due_s < limit_s else limit_s, True
        return 0

    cdef bint _ever_fits(self, StepLoop loop, ServedCall live) noexcept:
        return not loop.kv_limited or live.num_prompt_tokens <= loop.kv_tokens - loop.memory.parked

    cdef bint _fits(self, StepLoop loop, ServedCall live, int64_t held, bint empty) noexcept:
        """Twin of the part of fence.Fence.admit that is about memory."""
        cdef int64_t room
        if not loop.kv_limited:
            return True
        room = loop.kv_tokens - loop.memory.parked
        if <double>(held + _wanted(live)) <= <double>room * (1.0 - self.kv_margin):
            return True
        return empty and live.num_prompt_tokens <= room

    cdef int64_t _piece(self, ServedCall live, int64_t most, double room_s) noexcept:
        """Twin of fit._piece."""
        cdef StepSoFar *step = &self.so_far
        cdef int64_t context = live.num_computed_tokens, least
        if not self.chosen:
            least = min(self.chunk_min, most)
            return _largest_piece(step, least, most, self.chunk_block, context, room_s) if least < most else most
        if not self.cuts or most <= self.chunk_block:
            return 0
        if not _step_seconds_with(step, self.chunk_block, context) <= room_s:
            return 0
        return _largest_piece(step, self.chunk_block, most, self.chunk_block, context, room_s)


cdef _pace_read(PaceFit *fit, piece):
    cdef int i
    for i in range(PACE_TERMS):
        fit.terms[i] = piece.terms[i]
    for i in range(PACE_TERMS * PACE_TERMS):
        fit.inverse[i] = piece.inverse[i]
    fit.steps = piece.steps


cdef tuple _pace_numbers(PaceFit *fit):
    return (
        tuple([fit.terms[i] for i in range(PACE_TERMS)]),
        tuple([fit.inverse[i] for i in range(PACE_TERMS * PACE_TERMS)]),
        fit.steps,
    )
