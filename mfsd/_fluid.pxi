# The rate allocator of the simulator (csrc/include/mfs/fluid.h) for Python. Included by _native.pyx.
cimport cython
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc


cdef class FluidPath:
    """The links that a flow crosses and the share of its rate on each. Checked once and used by many flows."""

    cdef uint32_t n
    cdef uint32_t *links
    cdef double *shares

    def __cinit__(self, links, shares=None):
        self.n = len(links)
        if self.n == 0:
            raise ValueError("links: a flow must cross at least one link")
        if shares is not None and len(shares) != self.n:
            raise ValueError(f"shares: {len(shares)} values for {self.n} links")
        if len(set(links)) != self.n:
            raise ValueError(f"links: {list(links)} names a link twice; add up its shares instead")
        self.links = <uint32_t *>malloc(self.n * sizeof(uint32_t))
        self.shares = <double *>malloc(self.n * sizeof(double))
        if self.links == NULL or self.shares == NULL:
            raise MemoryError()
        for i in range(self.n):
            self.links[i] = links[i]
            self.shares[i] = 1.0 if shares is None else shares[i]

    def __dealloc__(self):
        free(self.links)
        free(self.shares)


cdef class Fluid:
    """Exact strict-priority max-min rates over links, in bytes, seconds and bytes per second (mfs/fluid.h)."""

    cdef mfs_fluid *net
    cdef uint32_t taken[4096]

    def __cinit__(self, capacities):
        cdef uint32_t n = len(capacities)
        cdef double *values = <double *>malloc((n + 1) * sizeof(double))
        if values == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                values[i] = capacities[i]
            rc = mfs_fluid_create(&self.net, n, values)
        finally:
            free(values)
        if rc == -12:
            raise MemoryError()
        if rc:
            raise ValueError("capacities: every link needs a finite capacity >= 0 in bytes per second")

    def __dealloc__(self):
        mfs_fluid_destroy(self.net)

    def add_link(self, double capacity) -> int:
        link = mfs_fluid_add_link(self.net, capacity)
        if link < 0:
            raise ValueError(f"capacity: {capacity} is not a finite number of bytes per second >= 0")
        return link

    def set_capacity(self, uint32_t link, double capacity):
        if mfs_fluid_set_capacity(self.net, link, capacity):
            raise ValueError(f"set_capacity: link {link} or capacity {capacity} is not valid")

    def add(self, FluidPath path not None, uint64_t order, double bytes, double weight=1.0) -> int:
        """Adds a flow and returns its number. Smaller orders go first; equal orders share by weight."""
        flow = mfs_fluid_add(self.net, order, weight, bytes, path.n, path.links, path.shares)
        if flow == -12:
            raise MemoryError()
        if flow < 0:
            raise ValueError(f"flow of {bytes} bytes, weight {weight}: a link does not exist or a value is not finite and positive")
        return flow

    def remove(self, uint32_t flow):
        if mfs_fluid_remove(self.net, flow):
            raise KeyError(flow)

    def refill(self, uint32_t flow, double bytes):
        if mfs_fluid_refill(self.net, flow, bytes):
            raise ValueError(f"refill: no flow {flow}, or {bytes} is not a number of bytes")

    def set_order(self, uint32_t flow, uint64_t order):
        if mfs_fluid_set_order(self.net, flow, order):
            raise KeyError(flow)

    @property
    def now(self) -> float:
        return mfs_fluid_now(self.net)

    def next(self) -> float:
        """Returns the time of the next completion, infinity if there is none."""
        return mfs_fluid_next(self.net)

    def advance(self, double now):
        if mfs_fluid_advance(self.net, now):
            raise ValueError(f"advance: {now} s is before now or after the next completion")

    def take_completed(self) -> list:
        cdef uint32_t n = mfs_fluid_take_completed(self.net, self.taken, 4096)
        return [self.taken[i] for i in range(n)]

    def rate(self, uint32_t flow) -> float:
        value = mfs_fluid_rate(self.net, flow)
        if value < 0:
            raise KeyError(flow)
        return value

    def remaining(self, uint32_t flow) -> float:
        value = mfs_fluid_remaining(self.net, flow)
        if value < 0:
            raise KeyError(flow)
        return value

    def link_rate(self, uint32_t link, uint64_t before=0xFFFFFFFFFFFFFFFF) -> float:
        """Returns the rate over a link of the flows with orders below `before`, as of the last allocation."""
        value = mfs_fluid_link_rate(self.net, link, before)
        if value < 0:
            raise KeyError(link)
        return value

    def stats(self) -> dict:
        cdef mfs_fluid_stats_t stats = mfs_fluid_stats(self.net)
        return {"events": stats.events, "solves": stats.solves, "visits": stats.visits}

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def replay(self, const double[::1] start_s, const double[::1] bytes, const uint64_t[::1] order,
               const uint32_t[::1] first_link, const uint32_t[::1] links, double[::1] finish_s):
        """Runs an open-loop trace to its end. Flow i starts at start_s[i] (ascending) and crosses
        links[first_link[i]:first_link[i + 1]]. Its end is written to finish_s[i]. The network must be empty before."""
        cdef Py_ssize_t n = start_s.shape[0], i = 0
        cdef double t, finish
        cdef int64_t flow
        cdef uint32_t k, done, room = 0
        cdef uint32_t *owner = NULL
        cdef int rc
        if bytes.shape[0] != n or order.shape[0] != n or finish_s.shape[0] != n or first_link.shape[0] != n + 1:
            raise ValueError("replay: arrays differ in length")
        owner = <uint32_t *>malloc((n + 1) * sizeof(uint32_t))
        if owner == NULL:
            raise MemoryError()
        try:
            with nogil:
                while True:
                    finish = mfs_fluid_next(self.net)
                    t = start_s[i] if i < n and start_s[i] < finish else finish
                    if t == INFINITY:
                        break
                    rc = mfs_fluid_advance(self.net, t)
                    if rc:
                        break
                    while True:
                        done = mfs_fluid_take_completed(self.net, self.taken, 4096)
                        for k in range(done):
                            finish_s[owner[self.taken[k]]] = t
                            mfs_fluid_remove(self.net, self.taken[k])
                        if done < 4096:
                            break
                    while i < n and start_s[i] <= t:
                        flow = mfs_fluid_add(self.net, order[i], 1.0, bytes[i], first_link[i + 1] - first_link[i],
                                             &links[first_link[i]], NULL)
                        if flow < 0 or flow >= n:
                            rc = -1
                            break
                        owner[flow] = <uint32_t>i
                        i += 1
                    if rc:
                        break
            if rc:
                raise ValueError(f"replay: flow {i} is not valid or starts before its predecessor")
        finally:
            free(owner)
