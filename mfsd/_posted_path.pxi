# ---- the fast path of transfers that are posted, and then polled by their program ------------------------------------

from cpython.object cimport Py_EQ, PyObject_RichCompareBool
from cpython.pythread cimport (
    NOWAIT_LOCK, WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock,
    PyThread_type_lock,
)

cdef extern from *:
    """
    static inline uint64_t mfs_native_load(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_SEQ_CST); }
    static inline void mfs_native_store(uint64_t *to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_SEQ_CST); }
    static inline uint64_t mfs_native_swap(uint64_t *at, uint64_t value)
    {
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
    }
    """
    uint64_t mfs_native_load(const uint64_t *source) noexcept nogil
    void mfs_native_store(uint64_t *to, uint64_t value) noexcept nogil
    uint64_t mfs_native_swap(uint64_t *at, uint64_t value) noexcept nogil

cdef extern from "Python.h":
    ctypedef enum PyLockStatus:
        PY_LOCK_ACQUIRED
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interrupted) nogil

cdef enum:
    POSTED_IDLE = 0     # not posted yet, or released
    POSTED_WAITING = 1  # it was submitted and waits for its permit
    POSTED_ACTIVE = 2   # posted to NIXL
    POSTED_DONE = 3     # it has arrived
    POSTED_LONG = 4     # handed over to its Transfer in Python
    SPIN_NS = 20000     # an arbiter that is awake answers within this time
    LINGER_TICKS = 10   # idle ticks before the thread sleeps; they cost less than waking it costs a transfer
    DEADLINE_MAX_BITS = 60

cdef object ANSWER_PROC = "PROC"
cdef object ANSWER_DONE = "DONE"
cdef object ANSWER_ERR = "ERR"


cdef PyThread_type_lock lock_made() except NULL:
    cdef PyThread_type_lock lock = PyThread_allocate_lock()
    if lock is NULL:
        raise MemoryError
    return lock


cdef void lock_take(PyThread_type_lock lock) noexcept:
    if not PyThread_acquire_lock(lock, NOWAIT_LOCK):
        with nogil:
            PyThread_acquire_lock(lock, WAIT_LOCK)


@cython.final
@cython.auto_pickle(False)
cdef class Unasked:
    cdef dict postings
    cdef uint64_t arriving_ns, waiting_ns
    cdef uint64_t due_ns, called_ns, rung, asleep
    cdef PyThread_type_lock bell

    def __cinit__(self, uint64_t arriving_ns, uint64_t waiting_ns):
        self.postings = {}
        self.arriving_ns = arriving_ns
        self.waiting_ns = waiting_ns
        self.bell = lock_made()
        PyThread_acquire_lock(self.bell, WAIT_LOCK)

    def __dealloc__(self):
        if self.bell is not NULL:
            PyThread_free_lock(self.bell)

    def __len__(self):
        return len(self.postings)

    cdef int add(self, Posting posting) except -1:
        cdef bint waits = posting.state == POSTED_WAITING
        posting.due_ns = posting.began_ns + (self.waiting_ns if waits else self.arriving_ns)
        self.postings[posting] = None
        if self.due_ns == 0 or posting.due_ns < self.due_ns:
            mfs_native_store(&self.due_ns, posting.due_ns)
        if waits or mfs_native_load(&self.asleep):
            self.wake()
        return 0

    cdef int remove(self, Posting posting) except -1:
        cdef Posting other
        cdef uint64_t due_ns = 0
        if self.postings.pop(posting, UNTOUCHED) is UNTOUCHED or posting.due_ns != self.due_ns:
            return 0
        for other in self.postings:
            if due_ns == 0 or other.due_ns < due_ns:
                due_ns = other.due_ns
        mfs_native_store(&self.due_ns, due_ns)
        return 0

    def due(self):
        cdef uint64_t now_ns = mfs_native_now_ns()
        cdef Posting posting
        return [posting for posting in tuple(self.postings) if posting.due_ns <= now_ns]

    def soon(self):
        if self.called_ns == 0:
            mfs_native_store(&self.called_ns, mfs_native_now_ns() + self.arriving_ns)
        if mfs_native_load(&self.asleep):
            self.wake()

    def ring(self):
        mfs_native_store(&self.called_ns, 1)
        self.wake()

    cdef void wake(self) noexcept:
        if not mfs_native_swap(&self.rung, 1):
            PyThread_release_lock(self.bell)

    cdef bint wait_for(self, long long timeout_us) noexcept nogil:
        """Waits for the bell. Returns whether it rang before the timeout."""
        if PyThread_acquire_lock_timed(self.bell, timeout_us, 0) != PY_LOCK_ACQUIRED:
            return False
        mfs_native_store(&self.rung, 0)
        return True

    def wait(self, double timeout_s):
        cdef long long timeout_us = <long long>(timeout_s * 1e6)
        with nogil:
            self.wait_for(timeout_us)
        mfs_native_store(&self.called_ns, 0)

    def wait_until_due(self):
        """Waits without the GIL, so that a program with short transfers can always poll for itself."""
        with nogil:
            self.ticks()
        mfs_native_store(&self.called_ns, 0)

    cdef void ticks(self) noexcept nogil:
        cdef int idle = 0
        cdef uint64_t now_ns, due_ns, called_ns, pause_ns
        while True:
            now_ns = mfs_native_now_ns()
            due_ns = mfs_native_load(&self.due_ns)
            called_ns = mfs_native_load(&self.called_ns)
            if due_ns == 0 or 0 < called_ns < due_ns:
                due_ns = called_ns
            if 0 < due_ns <= now_ns:
                return
            idle = 0 if due_ns != 0 else idle + 1
            if idle <= LINGER_TICKS:
                pause_ns = self.arriving_ns
                if due_ns != 0 and due_ns - now_ns < pause_ns:
                    pause_ns = due_ns - now_ns
                self.wait_for(<long long>(pause_ns // 1000) + 1)
                continue
            mfs_native_store(&self.asleep, 1)
            # a thread that sets either of these from now on sees `asleep` and wakes this one
            if not (mfs_native_load(&self.due_ns) | mfs_native_load(&self.called_ns)):
                self.wait_for(-1)
            mfs_native_store(&self.asleep, 0)
            idle = 0


cdef bint gated(Client client, const mfs_task *task) noexcept:
    """Returns whether tasks of this stage need permits on this NIC now."""
    cdef mfs_segment *segment = mfs_client_segment(client.client)
    cdef uint32_t word
    if task.nic < MFS_NICS_FIRST:
        word = mfs_load_u32(&segment.gate[task.nic].word)
    elif task.nic < client.nics():
        word = mfs_load_u32(&segment.nic_tables[task.nic - MFS_NICS_FIRST].gate.word)
    else:
        return False
    return word >> task.stage & 1


@cython.final
@cython.auto_pickle(False)
cdef class Posting:
    cdef object __weakref__
    cdef PostedPath path
    cdef PyThread_type_lock lock
    cdef mfs_task task
    cdef Permit permit
    cdef Client asked
    cdef object kept, batch, notified
    cdef int state
    cdef bint closed
    cdef uint64_t began_ns, due_ns
    cdef readonly object own, peer, metadata, operation, local, local_indices, remote, remote_indices, skip_merge
    cdef readonly object notification, backends
    cdef readonly int64_t size_bytes
    cdef readonly bint incoming
    cdef readonly int stage

    def __cinit__(self):
        self.lock = lock_made()

    def __init__(self):
        raise TypeError("use PostedPath.posting")

    def __dealloc__(self):
        if self.lock is not NULL:
            PyThread_free_lock(self.lock)

    cdef bint under_way(self) noexcept:
        return self.state == POSTED_ACTIVE or self.state == POSTED_WAITING

    cdef int describe(self, PostedPath path, str peer, metadata, int64_t size_bytes, int stage, bint incoming) except -1:
        request_id, own_stage, layer, deadline_ns, self.batch = metadata
        self.path, self.peer, self.metadata = path, peer, metadata
        self.size_bytes, self.stage, self.incoming = size_bytes, stage, incoming
        self.task.bytes = size_bytes
        self.task.request_id = request_id
        self.task.stage = stage if own_stage is None else own_stage
        self.task.layer = layer
        self.task.deadline_ns = deadline_ns
        self.task.incoming = incoming
        if (self.task.stage >= MFS_STAGES_MAX or self.task.request_id == <uint64_t>-1 or
                self.task.deadline_ns > <uint64_t>1 << DEADLINE_MAX_BITS):
            raise OverflowError
        return 0

    @property
    def native(self):
        return self.state == POSTED_ACTIVE or self.state == POSTED_DONE

    @property
    def waits(self):
        return self.state == POSTED_WAITING

    def transfer(self):
        """Hands it over and returns its Transfer. Waits for a thread that is using it."""
        if self.state == POSTED_LONG:
            return self.kept
        lock_take(self.lock)
        try:
            return self.hand_over(None)
        finally:
            PyThread_release_lock(self.lock)

    cdef hand_over(self, answer):
        """Hands the posting over to Python. `answer`: the status that NIXL gave and what it raised. NIXL is not asked
        again, as it may forget a failure."""
        cdef int state = self.state
        cdef PostedPath path = self.path
        if state == POSTED_LONG:
            return self.kept
        if self.kept is None:
            self.kept = path.transfer_of(self, self.closed)
        permit, self.permit = self.permit, None
        asked, self.asked = self.asked, None
        path.unasked.remove(self)
        self.state = POSTED_LONG
        if state == POSTED_WAITING:
            path.wait_on(self.kept, self.notified, asked, (<Permit>permit).task_id, (<Permit>permit).task.nic, self.began_ns)
        elif state != POSTED_IDLE:
            path.take_over(self.kept, self.notified, permit, self.began_ns / 1e9, answer)
        return self.kept

    cdef start(self, notification):
        cdef PostedPath path = self.path
        cdef Permit permit
        if self.under_way() or self.closed:
            return UNTOUCHED
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            return UNTOUCHED
        try:
            if self.under_way() or self.closed:
                return UNTOUCHED
            if self.state == POSTED_LONG and (self.kept.state is path.proc or self.kept.closed):
                return UNTOUCHED
            try:
                if not path.begun:
                    path.begin()
                    path.begun = True
                permit = path.permit_for(self)
            except Exception:
                return UNTOUCHED  # the Python path reports what is wrong
            if permit is None:
                return UNTOUCHED
            self.notified = notification
            if permit.client is None:
                self.permit, self.asked, self.began_ns = permit, path.settled.client, mfs_native_now_ns()
                self.state = POSTED_WAITING
                path.unasked.add(self)
                return ANSWER_PROC
            if not self.in_lane(permit):
                return self.post(permit)
            self.state = POSTED_IDLE
            kept = self.hand_over(None)
        finally:
            PyThread_release_lock(self.lock)
        return path.start_permitted(kept, notification, permit)

    cdef bint in_lane(self, Permit permit):
        cdef Course course
        try:
            course = self.path.courses.to(self.peer, mfs_native_now_ns())
        except Exception:
            course = None
        return course is None or permit.wire_class not in course.lanes

    cdef post(self, Permit permit):
        cdef PostedPath path = self.path
        cdef bint begun
        self.state = POSTED_ACTIVE  # from now on no other thread posts it
        try:
            status = path.post(self.own, self.notified)
            begun = PyObject_RichCompareBool(status, path.in_progress, Py_EQ)
            if begun or PyObject_RichCompareBool(status, path.success, Py_EQ):
                if begun:
                    self.permit = permit
                    self.began_ns = mfs_native_now_ns()
                    path.unasked.add(self)
                    return ANSWER_PROC
                permit.finish(True)
                self.state = POSTED_DONE
                return ANSWER_DONE
        except BaseException as error:
            self.fail(permit, error)
            raise
        self.fail(permit, None)
        return ANSWER_ERR

    cdef int fail(self, Permit permit, error) except -1:
        """NIXL has not accepted it: gives back the permit and hands it over."""
        permit.finish(False)
        self.permit = None
        self.state = POSTED_IDLE
        self.path.fail(self.hand_over(None), error)
        return 0

    cdef check(self):
        cdef PostedPath path = self.path
        cdef Permit permit
        error = status = None
        if not self.under_way():
            return ANSWER_DONE if self.state == POSTED_DONE else UNTOUCHED
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            return ANSWER_PROC  # another thread is posting it or asking about it
        try:
            if self.state == POSTED_WAITING:
                permit = self.permit
                if self.asked.client is NULL:
                    return UNTOUCHED
                if not client_asked(self.asked, permit):
                    if mfs_client_alive(self.asked.here(), mfs_native_now_ns()):
                        return ANSWER_PROC
                    return UNTOUCHED
                path.unasked.remove(self)
                self.permit = self.asked = None
                if not self.in_lane(permit):
                    return self.post(permit)
                self.state = POSTED_IDLE
                kept = self.hand_over(None)
            elif self.state == POSTED_ACTIVE:
                try:
                    status = path.status(self.own)
                    if PyObject_RichCompareBool(status, path.in_progress, Py_EQ):
                        return ANSWER_PROC
                    if PyObject_RichCompareBool(status, path.success, Py_EQ):
                        path.unasked.remove(self)
                        self.permit.finish(True)
                        self.permit = None
                        self.state = POSTED_DONE
                        return ANSWER_DONE
                except Exception as caught:
                    error = caught
                permit = None
                kept = self.hand_over((status, error))
            else:
                return ANSWER_DONE if self.state == POSTED_DONE else UNTOUCHED
        finally:
            PyThread_release_lock(self.lock)
        return path.check(kept) if permit is None else path.start_permitted(kept, self.notified, permit)

    cdef release(self):
        if self.kept is not None or self.under_way():
            return UNTOUCHED
        lock_take(self.lock)
        try:
            if self.kept is not None or self.under_way():
                return UNTOUCHED
            if self.closed:
                return None
            self.state = POSTED_IDLE
            self.path.release(self.own)
            self.closed = True
        finally:
            PyThread_release_lock(self.lock)
        unused(self.local)
        unused(self.remote)
        return None


cdef int unused(handle) except -1:
    prepared = handle.prepared
    prepared.users.pop()
    if prepared.released:
        prepared.settle()
    return 0


@cython.final
@cython.auto_pickle(False)
cdef class PostedPath:
    cdef object __weakref__
    cdef Settled settled
    cdef Courses courses
    cdef Unasked unasked
    cdef object slot_of, make_request, post, status, release, success, in_progress
    cdef object transfer_of, take_over, wait_on, start_permitted, check, fail, begin, proc
    cdef object call, context, unknown, handle_class, prepared_class, scheduling, copied, name
    cdef list owned
    cdef dict lanes
    cdef int reads, writes
    cdef int64_t size_max_bytes
    cdef bint begun, made_natively

    def __init__(self, Settled settled, *, slot_of, peer_of, binding, success, in_progress, course, uint64_t course_ns,
                 Unasked unasked, transfer_of, take_over, wait_on, start_permitted, check, fail, begin, proc):
        self.settled = settled
        self.slot_of = slot_of
        self.courses = Courses(course, peer_of, course_ns)
        self.unasked = unasked
        self.make_request = binding.makeXferReq
        self.post = binding.postXferReq
        self.status = binding.getXferStatus
        self.release = binding.releaseXferReq
        self.success = success
        self.in_progress = in_progress
        self.transfer_of = transfer_of
        self.take_over = take_over
        self.wait_on = wait_on
        self.start_permitted = start_permitted
        self.check = check
        self.fail = fail
        self.begin = begin
        self.proc = proc

    def makes(self, *, str name, call, context, unknown, list owned, handle_class, prepared_class, scheduling,
              dict lanes, copied, int reads, int writes, int64_t size_max_bytes):
        self.name, self.call, self.context, self.unknown, self.owned = name, call, context, unknown, owned
        self.handle_class, self.prepared_class, self.scheduling = handle_class, prepared_class, scheduling
        self.lanes, self.copied, self.reads, self.writes = lanes, copied, reads, writes
        self.size_max_bytes = size_max_bytes
        self.made_natively = True

    def changed(self):
        self.courses.version += 1

    def posting(self, kept, own, str peer, metadata, int64_t size_bytes, int stage, bint incoming):
        cdef Posting posting = Posting.__new__(Posting)
        try:
            posting.describe(self, peer, metadata, size_bytes, stage, incoming)
        except Exception:
            return None  # the Python path reports what is wrong
        posting.own, posting.kept = own, kept
        return posting

    cdef Permit permit_for(self, Posting posting):
        """Submits the task and returns its permit. If `permit.client` is None, the permit has not come yet. Returns
        None if nothing was submitted."""
        cdef Client client = self.settled.client
        cdef uint64_t now_ns = mfs_native_now_ns()
        cdef Course course
        cdef Permit permit
        if (client is None or client.client is NULL or
                mfs_load_u32(&mfs_client_segment(client.client).header.mode) != MFS_MODE_ENFORCE):
            return None
        course = self.courses.to(posting.peer, now_ns)
        if course is None:
            return None
        permit = Permit.__new__(Permit)
        permit.task = posting.task
        permit.task.nic = self.settled.nics[course.nic]
        permit.task.peer = course.peer
        permit.task.class_marked = course.class_marked_in if posting.incoming else course.class_marked_out
        batch_slot(&permit.task, posting.batch, self.slot_of, client)
        permit.task.at_once = True
        permit.task.on_credit = not gated(client, &permit.task)  # without credit the Python path sends it unpermitted
        if mfs_client_submit(client.client, &permit.task, MFS_COOKIE_NONE, &permit.task_id) < 0:
            return None
        while not client_asked(client, permit) and mfs_native_now_ns() - now_ns < SPIN_NS:
            pass
        return permit

    cdef make(self, program, operation, local, local_indices, remote, remote_indices, notification, backends, skip_merge):
        """Makes a handle of NIXL and the posting that belongs to it. Returns UNTOUCHED if nothing was done."""
        cdef Posting posting
        cdef Client client = self.settled.client
        cdef int64_t size_bytes
        cdef bint reading
        if not self.made_natively or client is None or client.client is NULL:
            return UNTOUCHED
        if type(local) is not self.prepared_class or type(remote) is not self.prepared_class:
            return UNTOUCHED
        for owner in self.owned:
            if len(owner) != 0:
                return UNTOUCHED
        try:
            mine, theirs = local.prepared, remote.prepared
            peer = theirs.peer
            size_bytes = mine.uniform_bytes * len(local_indices)
            if peer == self.name or not 0 < size_bytes <= self.size_max_bytes:
                return UNTOUCHED
            metadata = get_value(self.call, None) or get_value(self.context, None) or self.unknown
            reading = operation == "READ"
            posting = Posting.__new__(Posting)
            posting.describe(self, peer, metadata, size_bytes, self.reads if reading else self.writes, reading)
        except Exception:
            return UNTOUCHED  # the Python path reports what is wrong
        # From here on this does, and raises, the same as NIXL's own method.
        posting.operation = program.nixl_ops[operation]
        known = program.backends
        posting.backends = [known[name] for name in (list(backends) or list(known))]
        number = int(self.make_request(
            posting.operation, local._handle, local_indices, remote._handle, remote_indices, notification,
            posting.backends, skip_merge,
        ))
        handle = self.handle_class.__new__(self.handle_class)
        handle._agent, handle._handle, handle._released = program.agent, number, False
        handle.posting, handle.scheduling = posting, self.scheduling
        posting.own, posting.notification, posting.skip_merge = number, notification, skip_merge
        posting.local, posting.remote = local, remote
        mine.users.append(None)
        theirs.users.append(None)
        if self.lanes:  # the handle may be made again on a lane, and the program may change its indices meanwhile
            local_indices, remote_indices = self.copied(local_indices), self.copied(remote_indices)
        posting.local_indices, posting.remote_indices = local_indices, remote_indices
        return handle


def posted_make(otherwise):
    def make_prepped_xfer(self, operation, local_xfer_side, local_indices, remote_xfer_side, remote_indices, notif_msg=b"",
                          backends=(), skip_desc_merge=False):
        path = getattr(self, "_mfs_path", None)
        if type(path) is PostedPath:
            handle = (<PostedPath>path).make(
                self, operation, local_xfer_side, local_indices, remote_xfer_side, remote_indices, notif_msg, backends,
                skip_desc_merge,
            )
            if handle is not UNTOUCHED:
                return handle
        return otherwise(
            self, operation, local_xfer_side, local_indices, remote_xfer_side, remote_indices, notif_msg, backends,
            skip_desc_merge,
        )

    return make_prepped_xfer


def posted_transfer(otherwise):
    def transfer(self, handle, notif_msg=b""):
        posting = getattr(handle, "posting", None)
        if type(posting) is Posting:
            answer = (<Posting>posting).start(notif_msg)
            if answer is not UNTOUCHED:
                return answer
        return otherwise(self, handle, notif_msg)

    return transfer


def posted_check(otherwise):
    def check_xfer_state(self, handle):
        posting = getattr(handle, "posting", None)
        if type(posting) is Posting:
            answer = (<Posting>posting).check()
            if answer is not UNTOUCHED:
                return answer
        return otherwise(self, handle)

    return check_xfer_state


def posted_release(otherwise):
    def release(self):
        if self._released:
            return
        posting = getattr(self, "posting", None)
        if type(posting) is not Posting or (<Posting>posting).release() is UNTOUCHED:
            otherwise(self)
        self._released = True

    return release


def posted_del(otherwise):
    def __del__(self):
        if getattr(self, "_released", True):
            return
        posting = getattr(self, "posting", None)
        try:
            if type(posting) is Posting and (<Posting>posting).release() is not UNTOUCHED:
                return
        except Exception:
            return  # as __del__ of the Python path does
        otherwise(self)

    return __del__
