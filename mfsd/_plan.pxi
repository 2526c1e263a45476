# The Python binding of the plan core: Algorithm 1, kept up to date by events (csrc/include/mfs/plan.h). Included by
# _native.pyx.
from libc.stdint cimport INT64_MAX
from libc.stdlib cimport realloc


PlanDelta = namedtuple("PlanDelta", "pruned infeasible restored")
PlanCounts = namedtuple("PlanCounts", "batches requests pruned infeasible drop_budget")


cdef void *plan_table(size_t n, size_t size) except NULL:
    cdef void *at = malloc((n + 1) * size)
    if at == NULL:
        raise MemoryError()
    return at


cdef int plan_whole(str what, value) except -1:
    """Raises ValueError for a float, which would be truncated, and for what is not a number. True and numpy's integers
    pass."""
    if not hasattr(value, "__index__"):
        raise ValueError(f"{what} is {value!r}: use a whole number")
    return 0


cdef class PlanCore:
    """Incremental order and pruning (_native.pyi)."""

    cdef mfs_plan *plan_
    cdef uint32_t resources
    cdef bint held
    cdef object Plan, Place, Pruned
    cdef mfs_plan_request *request
    cdef mfs_plan_load *load
    cdef size_t request_room, load_room

    def __cinit__(self, config, resources):
        from mfsd.policy.result import Place, Plan, Pruned

        cdef mfs_plan_config made
        self.Place, self.Plan, self.Pruned = Place, Plan, Pruned
        made.paper = config.variant.value == "paper"
        made.drop_budget_ppm = round(config.drop_budget * 1_000_000)
        made.readmission_margin = config.readmission_margin
        made.ports = self.resources = resources
        rc = mfs_plan_create(&self.plan_, &made)
        if rc == -12:
            raise MemoryError()
        if rc:
            raise ValueError(f"drop_budget {config.drop_budget} or readmission_margin {config.readmission_margin}: use 0 to 1")

    def __dealloc__(self):
        mfs_plan_destroy(self.plan_)
        free(self.request)
        free(self.load)

    def arrive(self, batch, now_ns):
        if self._is_active(batch.batch_id):
            raise ValueError(f"batch {batch.batch_id} is active already: update it, or let it depart first")
        self._put(batch, now_ns)

    def update(self, batch, now_ns):
        self._check_active(batch.batch_id)
        self._put(batch, now_ns)

    def depart(self, batch_id, now_ns):
        cdef int64_t now = self._time("now_ns", now_ns)
        self._check_active(batch_id)
        mfs_plan_remove(self.plan_, batch_id)
        self._evaluate(now)

    def hold(self):
        self.held = True

    def release(self, now_ns):
        cdef int64_t now = self._time("now_ns", now_ns)
        self.held = False
        self._evaluate(now)

    cdef int _evaluate(self, int64_t now) except -1:
        if not self.held:
            mfs_plan_evaluate(self.plan_, now)
        return 0

    cdef bint _is_active(self, batch_id) except -1:
        return 0 <= batch_id < 1 << 64 and mfs_plan_active(self.plan_, batch_id)

    cdef int _check_active(self, batch_id) except -1:
        if not self._is_active(batch_id):
            raise ValueError(f"batch {batch_id} is not active: it never arrived or has departed")
        return 0

    cdef int _answer(self, int rc, batch_id) except -1:
        if rc == -12:
            raise MemoryError()
        if rc == -34:
            raise ValueError(f"batch {batch_id}: more than {MFS_PLAN_TIME_MAX} ns would be promised on one resource: "
                             "use smaller loads")
        if rc:
            raise ValueError(f"batch {batch_id}: refused (errno {-rc})")
        return 0

    cdef int64_t _time(self, str what, value) except? -1:
        if type(value) is not int:
            plan_whole(what, value)
        if not (-MFS_PLAN_TIME_MAX <= value <= MFS_PLAN_TIME_MAX):
            raise ValueError(f"{what} is {value}: use {-MFS_PLAN_TIME_MAX} to {MFS_PLAN_TIME_MAX}")
        return value

    cdef uint64_t _number(self, str what, value) except? 1:
        if type(value) is not int:
            plan_whole(what, value)
        if not (0 <= value < 1 << 64):
            raise ValueError(f"{what} {value}: use a number of 0 to {(1 << 64) - 1}")
        return value

    cdef int _put(self, batch, now_ns) except -1:
        cdef mfs_plan_batch made
        cdef size_t requests, n = 0
        cdef int64_t now = self._time("now_ns", now_ns)
        cdef int64_t deadline
        cdef uint64_t number, owner
        batch_id = batch.batch_id
        name = f"batch {batch_id}"
        made.id = self._number("batch", batch_id)
        requests = len(batch.requests)
        if not requests:
            raise ValueError(f"{name} has no requests: give at least one")
        if type(batch.compute_ns) is not int:
            plan_whole(f"{name}: compute_ns", batch.compute_ns)
        if batch.compute_ns < 0:
            raise ValueError(f"{name}: compute_ns is {batch.compute_ns}: use 0 or more")
        made.compute_ns = self._time(f"{name}: compute_ns", batch.compute_ns)
        self._room(requests, 0)
        n = self._add_loads(batch.fixed_loads, n, name, None)
        made.fixed_loads = <uint32_t>n
        seen = set()
        for i, request in enumerate(batch.requests):
            id_ = request.request_id
            number = self._number(f"{name}: request", id_)
            owner = made.id
            mfs_plan_owner(self.plan_, number, &owner)
            if id_ in seen or owner != made.id:
                raise ValueError(f"{name}: request {id_} is in batch {owner} already: name it once")
            seen.add(id_)
            before = n
            n = self._add_loads(request.loads, n, name, id_)
            deadline = INT64_MAX
            if request.deadline_ns != INT64_MAX:
                deadline = self._time(f"{name}: deadline_ns of request {id_}", request.deadline_ns)
            self.request[i] = mfs_plan_request(number, deadline, <uint32_t>(n - before))
        made.requests = <uint32_t>requests
        made.request = self.request
        made.load = self.load
        self._answer(mfs_plan_put(self.plan_, &made), batch_id)
        self._evaluate(now)
        return 0

    cdef int _room(self, size_t requests, size_t loads) except -1:
        """Grows the two tables to at least this many entries and keeps their contents."""
        cdef void *bigger
        if requests > self.request_room:
            bigger = realloc(self.request, 2 * requests * sizeof(mfs_plan_request))
            if bigger == NULL:
                raise MemoryError()
            self.request = <mfs_plan_request *>bigger
            self.request_room = 2 * requests
        if loads > self.load_room:
            bigger = realloc(self.load, 2 * loads * sizeof(mfs_plan_load))
            if bigger == NULL:
                raise MemoryError()
            self.load = <mfs_plan_load *>bigger
            self.load_room = 2 * loads
        return 0

    cdef size_t _add_loads(self, loads, size_t n, str name, request_id) except? 0:
        where = f"{name}: fixed_loads" if request_id is None else f"{name}: loads of request {request_id}"
        self._room(0, n + len(loads))
        for resource, busy_ns in loads.items():
            if type(resource) is not int or not (0 <= resource < self.resources):
                raise ValueError(f"{where}: resource {resource} is unknown: use a number below {self.resources}")
            if type(busy_ns) is not int:
                plan_whole(f"{where}: the load on resource {resource}", busy_ns)
            if busy_ns < 0:
                raise ValueError(f"{where}: {busy_ns} on resource {resource}: use 0 or more")
            if busy_ns > MFS_PLAN_TIME_MAX:
                raise ValueError(f"{where}: {busy_ns} on resource {resource}: use at most {MFS_PLAN_TIME_MAX}")
            self.load[n] = mfs_plan_load(resource, busy_ns)
            n += 1
        return n

    def spend(self, uint32_t requests):
        mfs_plan_spend(self.plan_, requests)

    # ---- reading

    def promised(self, uint32_t resource, red_ns=None):
        return mfs_plan_promised(self.plan_, resource, INT64_MAX if red_ns is None else red_ns)

    def counts(self):
        cdef mfs_plan_counts_t counts = mfs_plan_counts(self.plan_)
        return PlanCounts(counts.batches, counts.requests, counts.pruned, counts.infeasible, counts.drop_budget)

    def plan(self):
        cdef mfs_plan_counts_t counts = mfs_plan_counts(self.plan_)
        cdef mfs_plan_place *place
        cdef uint64_t *infeasible
        place = <mfs_plan_place *>plan_table(counts.batches, sizeof(mfs_plan_place))
        try:
            mfs_plan_places(self.plan_, place)
            Place = self.Place
            places = tuple([
                Place(
                    place[i].batch, place[i].red_ns, place[i].loose_ns, place[i].finish_ns,
                    None if place[i].bottleneck == MFS_PLAN_NO_PORT else place[i].bottleneck,
                )
                for i in range(counts.batches)
            ])
        finally:
            free(place)
        infeasible = <uint64_t *>plan_table(counts.infeasible, sizeof(uint64_t))
        try:
            mfs_plan_infeasible(self.plan_, infeasible)
            infeasible_ids = tuple(sorted([infeasible[i] for i in range(counts.infeasible)]))
        finally:
            free(infeasible)
        return self.Plan(places, self._pruned(counts.pruned), infeasible_ids, counts.drop_budget)

    cdef tuple _pruned(self, uint32_t n):
        cdef mfs_plan_pruned_t *pruned = <mfs_plan_pruned_t *>plan_table(n, sizeof(mfs_plan_pruned_t))
        try:
            mfs_plan_pruned(self.plan_, pruned)
            entries = [self._reason(pruned[i]) for i in range(n)]
        finally:
            free(pruned)
        entries.sort(key=lambda entry: entry.request_id)
        return tuple(entries)

    cdef object _reason(self, mfs_plan_pruned_t entry):
        return self.Pruned(entry.request, entry.batch, entry.for_batch, entry.port, entry.busy_ns)

    def delta(self):
        cdef mfs_plan_delta n = mfs_plan_delta_bounds(self.plan_)
        cdef mfs_plan_pruned_t *pruned = NULL
        cdef uint64_t *infeasible = NULL
        cdef uint64_t *restored = NULL
        try:
            pruned = <mfs_plan_pruned_t *>plan_table(n.pruned, sizeof(mfs_plan_pruned_t))
            infeasible = <uint64_t *>plan_table(n.infeasible, sizeof(uint64_t))
            restored = <uint64_t *>plan_table(n.restored, sizeof(uint64_t))
            n = mfs_plan_delta_take(self.plan_, pruned, infeasible, restored)
            return PlanDelta(
                [self._reason(pruned[i]) for i in range(n.pruned)],
                [infeasible[i] for i in range(n.infeasible)],
                [restored[i] for i in range(n.restored)],
            )
        finally:
            free(pruned)
            free(infeasible)
            free(restored)
