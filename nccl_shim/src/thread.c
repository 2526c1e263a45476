#include "thread.h"

__thread uint32_t shim_thread_id __attribute__((tls_model("initial-exec"))) = SHIM_THREAD_NONE;
__thread uint32_t shim_plain_id __attribute__((tls_model("initial-exec"))) = SHIM_THREAD_NONE;
__thread bool shim_context_given __attribute__((tls_model("initial-exec")));
__thread struct shim_collective shim_collective __attribute__((tls_model("initial-exec")));
