# A replica's steps in the serving simulator, for replica.Replica. Included by _native.pyx after _serving_queue.pxi.


cdef class ServedMemory:
    """The sums that bench.sim.serving.memory.Memory keeps up to date."""

    cdef public int64_t held, parked, hits
    cdef public object prefixes


@cython.cdivision(True)
cdef class StepLoop:
    """The part of a replica that runs each step. Its subclass bench.sim.serving.replica.Replica does what happens once
    per call."""

    cdef readonly dict waiting, prompts, decodes
    cdef public int64_t round, context, wanted, left_tokens
    cdef public double busy_s, step_s
    cdef public bint busy
    cdef public ServedMemory memory
    cdef public object planner
    cdef readonly list ends, due
    cdef readonly bint seen
    cdef readonly int64_t seen_prefill, seen_decodes, seen_context
    cdef readonly double seen_pairs, seen_s
    cdef bint kv_limited
    cdef int64_t kv_tokens
    cdef public int64_t steps, prefill_tokens, decode_tokens, kv_peak_tokens, errors, over
    cdef public double error_sum, end_s
    cdef readonly dict chunk_sizes
    cdef ServedDecision decision
    cdef double took_s, margin, bias, pace_weight
    cdef bint learns, noisy, observes_noise, lined
    cdef double line_small[6]
    cdef double line_large[6]
    cdef int64_t line_split, yield_every

    def __init__(self, config, bint learns, double pace_weight):
        self.waiting, self.prompts, self.decodes, self.ends, self.due = {}, {}, {}, [], []
        self.chunk_sizes = {}
        self.kv_limited = config.kv_tokens is not None
        self.kv_tokens = config.kv_tokens or 0
        self.learns, self.pace_weight, self.bias = learns, pace_weight, config.belief.bias
        self.noisy, self.observes_noise = config.noise != 0, config.belief.noise != 0
        self.margin, self.yield_every = config.serve.pace_margin, config.yield_every
        self.lined = hasattr(config.cost, "split_tokens")
        if self.lined:
            for i in range(PACE_TERMS):
                self.line_small[i], self.line_large[i] = config.cost.small[i], config.cost.large[i]
            self.line_split = config.cost.split_tokens

    def ruled(self, double margin):
        """Sets the margin that estimates have from now on."""
        self.margin = margin

    def begin(self, double now_s):
        """Plans a step and begins it. Returns when it ends, or None if there is nothing to compute."""
        cdef ServedDecision decision
        cdef int64_t decodes
        if not (self.waiting or self.prompts or self.decodes):
            return None
        if self.yield_every and self.round % self.yield_every == 0:
            self.give_way(now_s)
        decision = self._room(self._planned(now_s), now_s)
        decodes = len(self.decodes) - len(decision.paused)
        if not decision.pieces and not decodes:
            return self.idle(now_s)
        self._start(decision, now_s)
        self._run(decision, decodes)
        return now_s + self.took_s

    cdef ServedDecision _planned(self, double now_s):
        cdef bint timed = self.round % 16 == 0
        if timed:
            return self.timed(now_s)
        return self.plan(now_s)

    cpdef ServedDecision plan(self, double now_s):
        cdef KeptQueue kept
        if isinstance(self.planner, KeptQueue):
            kept = <KeptQueue>self.planner
            if len(self.decodes) <= min(kept.step_tokens, kept.requests_max):
                kept.waiting = self.waiting
                return kept.decide(self, now_s)
        return self.asked(now_s)

    cdef ServedDecision _room(self, ServedDecision decision, double now_s):
        """Returns the decision reduced to what memory allows. Mostly nothing has to be reduced."""
        cdef int64_t growth = len(self.decodes) - len(decision.paused)
        cdef ServedPiece piece
        cdef ServedCall live
        if not self.kv_limited:
            return decision
        for piece in decision.pieces:
            live = piece.live
            growth += piece.tokens
            if live.state == SERVED_WAITING and not live.parked:
                growth += live.num_computed_tokens
        if self.memory.held + self.memory.parked + growth <= self.kv_tokens and not self.memory.prefixes.tokens:
            return decision
        return self.memory.make_room(decision, now_s)

    cdef _start(self, ServedDecision decision, double now_s):
        """Begins the calls that start to compute; from here on they hold KV. Counts the steps in which others pause."""
        cdef ServedPiece piece
        cdef ServedCall live
        for piece in decision.pieces:
            if piece.live.state != SERVED_PROMPT:
                self.begins(piece.live, piece.live.request_id in decision.set_aside, now_s)
        if len(decision.pieces) < len(self.prompts):
            chosen = {piece.live.request_id for piece in decision.pieces}
            for number, live in self.prompts.items():
                if number not in chosen:
                    live.record.paused += 1
        for live in decision.paused:
            live.record.paused += 1

    cdef _run(self, ServedDecision decision, int64_t decodes):
        """Works out how long the step takes, and records it."""
        cdef ServedPiece piece
        cdef ServedCall live
        cdef int64_t tokens = 0, longest = 0, before = 0, at, context = self.context
        cdef double pairs = 0.0, took
        for piece in decision.pieces:
            at = piece.live.num_computed_tokens
            tokens += piece.tokens
            pairs = pairs + <double>piece.tokens * (<double>at + <double>piece.tokens / 2.0)
            before += at
            if at > longest:
                longest = at
        for live in decision.paused:
            context -= live.held(self.round)
        if self.lined:
            took = self._line(tokens, decodes, context, longest)
        else:
            took = self.seconds(tokens, decodes, context, pairs, longest, before)
        if self.noisy:
            took = took * <double>self.noise()
        self.decision, self.took_s, self.busy = decision, took, True
        self.steps += 1
        self.prefill_tokens += tokens
        self.decode_tokens += decodes
        if tokens:
            self.chunk_sizes[tokens] = self.chunk_sizes.get(tokens, 0) + 1
        if self.learns:
            self.error_sum = self.error_sum + fabs(decision.step_s / self.margin / took - 1.0)
            self.errors += 1
            self.over += decision.step_s < took
            self.seen, self.seen_prefill, self.seen_decodes = True, tokens, decodes
            self.seen_context, self.seen_pairs, self.seen_s = context, pairs, took * self.bias
            if self.observes_noise:
                self.seen_s = self.seen_s * <double>self.noise_observed()
        if decodes:
            self.step_s = self.step_s + (self.pace_weight if self.step_s else 1.0) * (took - self.step_s)

    cdef double _line(self, int64_t prefill, int64_t decodes, int64_t context, int64_t longest) noexcept:
        """Twin of cost.Linear."""
        cdef int64_t tokens = prefill + decodes
        cdef double *k = &self.line_small[0] if tokens <= self.line_split else &self.line_large[0]
        return (
            k[0] + k[1] * <double>tokens + k[2] * <double>prefill + k[3] * <double>decodes
            + k[4] * <double>context + k[5] * <double>longest
        )

    def take_seen(self):
        """Returns (prefill tokens, decodes, context, pairs, seconds) of the step that has ended since the last plan, if
        there is one to learn from."""
        if not self.seen:
            return None
        self.seen = False
        return self.seen_prefill, self.seen_decodes, self.seen_context, self.seen_pairs, self.seen_s

    def finish(self, double now_s):
        """Ends the step. Returns the calls that end with it."""
        cdef ServedDecision decision = self.decision
        cdef ServedCall live
        cdef ServedPiece piece
        cdef int64_t running
        cdef list ended
        self.decision, self.busy = None, False
        self.round += 1
        self.busy_s = self.busy_s + self.took_s
        self.end_s = now_s
        for live in decision.paused:
            live.offset += 1
            live.end_round += 1
        running = len(self.decodes) - len(decision.paused)
        self.context += running
        self.wanted += running
        self.memory.held += running
        if self.due and <double>(<tuple>self.due[0])[0] < now_s:
            self._late(now_s, {live.request_id for live in decision.paused} if decision.paused else ())
        ended = self._ended(now_s)
        for piece in decision.pieces:
            live = piece.live
            live.num_computed_tokens += piece.tokens
            live.prefill_left -= piece.tokens
            live.request = None
            self.left_tokens -= piece.tokens
            self.memory.held += piece.tokens
            live.service_s = live.service_s + self.took_s
            record = live.record
            record.computed_tokens += piece.tokens
            record.chunks += 1
            if live.prefill_left <= 0 and self.filled(live, now_s):
                ended.append(live)
        if self.memory.held > self.kv_peak_tokens:
            self.kv_peak_tokens = self.memory.held
        return ended

    cdef _late(self, double now_s, paused):
        """Counts tokens that came after they were due."""
        cdef list due = self.due, back = []
        cdef tuple top
        cdef ServedCall live
        cdef int64_t made
        cdef double at
        while due and <double>(<tuple>due[0])[0] < now_s:
            top = <tuple>due[0]
            live = <ServedCall>top[2]
            if live.state != SERVED_DECODE:
                _heappop(due)
                continue
            made = self.round - live.offset - 1  # before this step's token
            at = self._token_due_s(live, made)
            if at < now_s and top[1] not in paused:
                record = live.record
                record.late_tokens += 1
                if now_s - at > <double>record.token_late_s:
                    record.token_late_s = now_s - at
                _heappop(due)
                back.append((self._token_due_s(live, made + 1), top[1], live))
            elif at < now_s:
                back.append(_heappop(due))
            else:
                _heapreplace(due, (at, top[1], live))
        for top in back:
            _heappush(due, top)

    cdef double _token_due_s(self, ServedCall live, int64_t made) except? -1.0:
        cdef double first = live.first_token_s
        if live.ttft_s is not None and live.arrival_s + <double>live.ttft_s > first:
            first = live.arrival_s + <double>live.ttft_s
        return first + <double>made * <double>live.tbt_s

    def token_due_s(self, ServedCall live, int64_t made):
        """Returns when the next token is due after `made` tokens."""
        return self._token_due_s(live, made)

    cdef list _ended(self, double now_s):
        cdef list ended = [], ends = self.ends
        cdef ServedCall live
        cdef tuple top
        while ends and <int64_t>(<tuple>ends[0])[0] <= self.round:
            top = <tuple>_heappop(ends)
            live = <ServedCall>top[2]
            if live.state != SERVED_DECODE:
                continue
            if live.end_round > self.round:  # it was paused in some steps
                _heappush(ends, (live.end_round, top[1], live))
                continue
            self.ends_now(live, now_s)
            ended.append(live)
        return ended
