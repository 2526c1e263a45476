"""Import path of the scheduler for `--scheduler-cls`."""

from mooncake_adapter.vllm.scheduler import MfsScheduler as MfsScheduler
