# ---- what is watched: accounts of requests, events ---------------------------------------------------------------------

cdef extern from "mfs/ledger.h" nogil:
    enum:
        MFS_LEDGER_REQUESTS, MFS_LEDGER_REQUEST_CELLS, MFS_LEDGER_LAYER_REST
    struct mfs_account:
        uint64_t request_id
        uint64_t batch_id
        uint64_t begin_ns
        uint64_t end_ns
        uint64_t done_ns
        uint64_t deadline_ns
        uint32_t client_id
        uint32_t open
        uint32_t announced
        uint32_t pruned
        uint32_t verdict
        uint32_t cells
    struct mfs_account_cell:
        uint64_t submitted_bytes
        uint64_t completed_bytes
        uint64_t bypassed_bytes
        uint64_t dropped_bytes
        uint64_t first_ns
        uint64_t last_ns
        uint32_t tasks
        uint16_t layer
        uint8_t stage
    struct mfs_finished:
        uint64_t request_id
        uint64_t batch_id
        uint64_t begin_ns
        uint64_t end_ns
        uint64_t done_ns
        uint64_t deadline_ns
        uint64_t bytes
        uint32_t client_id
        uint8_t verdict
        uint8_t pruned
    struct mfs_ledger_totals:
        uint64_t evicted
        uint64_t unaccounted
        uint64_t unreported
        uint32_t requests
        uint32_t cells
    int mfs_arbiter_accounts(mfs_arbiter *arbiter, uint64_t request_id, uint32_t first, mfs_account *accounts, int n,
                             mfs_account_cell *cells, uint32_t cells_max, uint32_t *next)
    int mfs_arbiter_finished(mfs_arbiter *arbiter, mfs_finished *finished, int n)
    int mfs_arbiter_ledger_totals(mfs_arbiter *arbiter, mfs_ledger_totals *totals)

cdef extern from "mfs/trace.h" nogil:
    enum:
        MFS_EVENT_LAYOUT, MFS_OPEN_REASONS, MFS_EVENT_SLOTS_MAX
    struct mfs_event:
        pass
    int mfs_arbiter_trace_attach(mfs_arbiter *arbiter, uint32_t slots)
    int mfs_arbiter_trace_detach(mfs_arbiter *arbiter)
    int mfs_arbiter_trace_read(mfs_arbiter *arbiter, mfs_event *events, int n, uint64_t *lost)
    int mfs_arbiter_opened(mfs_arbiter *arbiter, uint64_t *counts)

EVENT_LAYOUT = MFS_EVENT_LAYOUT
EVENT_BYTES = sizeof(mfs_event)
EVENT_SLOTS_MAX = MFS_EVENT_SLOTS_MAX
LEDGER_REQUESTS = MFS_LEDGER_REQUESTS
LEDGER_REQUEST_CELLS = MFS_LEDGER_REQUEST_CELLS
LEDGER_LAYER_REST = MFS_LEDGER_LAYER_REST

AccountCell = namedtuple(
    "AccountCell",
    "stage layer tasks submitted_bytes completed_bytes bypassed_bytes dropped_bytes first_ns last_ns",
)
Account = namedtuple(
    "Account",
    "request_id client_id batch_id begin_ns end_ns done_ns deadline_ns open announced pruned verdict cells",
)
Finished = namedtuple(
    "Finished", "request_id client_id batch_id begin_ns end_ns done_ns deadline_ns size_bytes verdict pruned"
)


class Verdict(IntEnum):
    NONE = 0
    MET = 1
    MISSED = 2


cdef account_write(const mfs_account *a, const mfs_account_cell *c):
    cells = [
        AccountCell(
            c[i].stage, c[i].layer, c[i].tasks, c[i].submitted_bytes, c[i].completed_bytes, c[i].bypassed_bytes,
            c[i].dropped_bytes, c[i].first_ns, c[i].last_ns,
        ) for i in range(a.cells)
    ]
    return Account(
        a.request_id, a.client_id, a.batch_id, a.begin_ns, a.end_ns, a.done_ns, a.deadline_ns, a.open, bool(a.announced),
        bool(a.pruned), Verdict(a.verdict), tuple(sorted(cells)),
    )
