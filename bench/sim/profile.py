"""How long a layer computes and how many bytes it moves: a calibrated roofline per model and accelerator.

Constants were fitted on published kernel measurements of A100 and H100 (GEMM, attention, fused experts, NVLink
all-reduce) and checked against Vidur's layer profiles: within 10 % for Llama-3-70B on 1-4 GPUs from 512 tokens up. The
expert term is the weakest (measurements differ by a multiple), so `imbalance` is explicit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bench.sim.topology import NVSWITCH_BYTES_PER_S


class Accelerator(msgspec.Struct, frozen=True):
    """One GPU: achieved FLOP/s, bytes/s and all-reduce bytes/s by tensor-parallel degree."""

    name: str
    gemm_flops: float
    attention_flops: float
    attention_half_length: float  # tokens at which attention reaches half of attention_flops
    expert_flops: float
    memory_bytes_per_s: float
    all_reduce_bytes_per_s: dict[int, float]
    overhead: float = 1.10
    launch_s: float = 6e-6


A100 = Accelerator("a100", 235e12, 180e12, 600, 170e12, 1.5e12, {2: 193e9, 4: 144e9, 8: 127e9})
# NVLink 4 carries 1.5 times NVLink 3; the expert rate keeps the ratio of the GEMM rates.
H100 = Accelerator("h100", 735e12, 600e12, 900, 530e12, 2.6e12, {2: 290e9, 4: 216e9, 8: 190e9})
ACCELERATORS = {a.name: a for a in (A100, H100)}


class Model(msgspec.Struct, frozen=True):
    """One model and how an instance (a prefill unit) is split. Parameters are per layer, bytes per token and layer
    (fp16)."""

    name: str
    layers: int
    hidden: int
    heads: int
    head_dim: int
    attention_params: float
    expert_params: float
    experts: int  # 0: dense
    top_k: int
    tensor_parallel: int
    instance_gpus: int
    dense_params: float = 0.0
    kv_bytes: float = 4096.0
    sequence_parallel: int = 1
    server_gpus: int = 8
    link_gbps: float = 200.0

    @property
    def groups(self) -> int:
        """Attention replicas in an instance; each has whole requests (one replica if the sequence is split)."""
        return 1 if self.sequence_parallel > 1 else self.instance_gpus // self.tensor_parallel

    @property
    def group_gpus(self) -> int:
        return self.instance_gpus // self.groups

    @property
    def weights_bytes(self) -> int:
        """Of all GPUs of an instance. Each tensor-parallel group has all but experts, which are there once."""
        shared = self.attention_params + self.dense_params + (0.0 if self.experts else self.expert_params)
        copies = self.instance_gpus // self.tensor_parallel
        return round(2 * self.layers * (copies * shared + self.experts * self.expert_params))

    @property
    def in_a_node(self) -> bool:
        """Whether an instance lies within one server, so that its collectives use only NVSwitch and meet no KV."""
        return self.instance_gpus <= self.server_gpus

    def attention_s(self, gpu: Accelerator, lengths: Sequence[tuple[int, int]]) -> float:
        """Returns one group's time up to the dispatch (dense: of the whole layer) for requests of (new, context)
        tokens."""
        tokens = sum(new for new, _ in lengths) / self.sequence_parallel
        if tokens == 0:
            return 10 * gpu.launch_s
        tp = self.tensor_parallel
        params = self.attention_params + self.dense_params + (0.0 if self.experts else self.expert_params)
        seconds = gpu.overhead * max(
            2 * tokens * params / tp / gpu.gemm_flops, params * 2 / tp / gpu.memory_bytes_per_s
        )
        work = sum(new * context + new * new / 2 for new, context in lengths)
        length = max(new + context for new, context in lengths)
        flops = 4.0 * self.heads * self.head_dim * work / tp / self.sequence_parallel
        seconds += flops * (length + gpu.attention_half_length) / (gpu.attention_flops * length)
        seconds += 10 * gpu.launch_s
        if tp > 1:
            seconds += 2 * (tokens * self.hidden * 2 / gpu.all_reduce_bytes_per_s[tp] + 2 * gpu.launch_s)
        return seconds

    def expert_s(self, gpu: Accelerator, tokens: int, imbalance: float = 1.0) -> float:
        """Returns the time of the experts for all tokens of a batch; imbalance: busiest rank against the mean."""
        if not self.experts:
            return 0.0
        flops = 2.0 * tokens * self.top_k * self.expert_params / self.instance_gpus
        weights = self.experts * self.expert_params * 2 / self.instance_gpus
        seconds = max(imbalance * flops / gpu.expert_flops, weights / gpu.memory_bytes_per_s)
        if self.in_a_node:  # dispatch and combine over NVSwitch
            sent = tokens * self.top_k * self.hidden * 2.0 * (1 - 1 / self.instance_gpus)
            seconds += 2 * sent / self.instance_gpus / NVSWITCH_BYTES_PER_S
        return seconds + 4 * gpu.launch_s

    def collective_bytes(self, tokens: int) -> float:
        """Returns the bytes that one direction of the layer's collective moves between servers, over all NICs of the
        instance.

        Experts: the dispatch; the combine moves as many again. Sequence parallel: the ring passes every rank's KV to
        each other rank; only the hops between servers use NICs.
        """
        if self.experts:
            servers = max(1, self.instance_gpus // self.server_gpus)
            return tokens * self.top_k * self.hidden * 2.0 * (1 - 1 / servers)
        ranks = self.sequence_parallel
        crossing = self.instance_gpus // self.server_gpus if not self.in_a_node else 0
        return tokens / ranks * self.kv_bytes * (ranks - 1) * crossing


MODELS = {
    m.name: m
    for m in (
        Model("mixtral-8x22b", 56, 6144, 48, 128, 88.1e6, 302.0e6, 8, 2, 4, 32),
        Model("dbrx", 40, 6144, 48, 128, 88.1e6, 198.2e6, 16, 4, 2, 32),
        Model("grok-2", 64, 8192, 64, 128, 151.0e6, 402.7e6, 8, 2, 4, 32, dense_params=805.3e6),
        Model("qwen3-coder", 62, 6144, 96, 128, 163.6e6, 47.2e6, 160, 8, 1, 32),
        # The other reading of the name: 12 of 48 layers keep KV, given here as the mean over layers; attention is an
        # estimate.
        Model("qwen3-coder-next", 48, 2048, 16, 256, 25.0e6, 3.15e6, 512, 10, 1, 32, kv_bytes=512.0),
        Model("llama3-8b", 32, 4096, 32, 128, 41.9e6, 176.2e6, 0, 0, 4, 16, sequence_parallel=4),
        Model("llama3-8b-node", 32, 4096, 32, 128, 41.9e6, 176.2e6, 0, 0, 4, 8, sequence_parallel=2),
        Model("llama3-8b-gpu", 32, 4096, 32, 128, 41.9e6, 176.2e6, 0, 0, 1, 1),
        Model("llama3-70b", 80, 8192, 64, 128, 151.0e6, 704.6e6, 0, 0, 8, 8),
        # Keys and values of all heads.
        Model("llama2-7b", 32, 4096, 32, 128, 67.1e6, 135.3e6, 0, 0, 1, 1, kv_bytes=16384.0),
        # Latent attention: 512 + 64 values of KV; heads of 192 for keys and 128 for values, here their mean. One shared
        # expert; the three dense layers are treated like the others. Split as its authors do for prefill: 4 servers,
        # TP4.
        Model("deepseek-v3", 61, 7168, 128, 160, 187.1e6, 44.0e6, 256, 8, 4, 32, dense_params=44.0e6, kv_bytes=1152.0),
        Model("mixtral-8x7b", 32, 4096, 32, 128, 41.9e6, 176.2e6, 8, 2, 1, 8, server_gpus=4, link_gbps=50.0),
        # The same model as bench/testbed runs it, on units of two GPUs, one to a server, so that a NIC carries as much
        # per computed token as with eight. Each of 8 layers stands for four, so that two cores can simulate them.
        Model(
            "mixtral-8x7b-testbed",
            8,
            4 * 4096,
            4 * 32,
            128,
            4 * 41.9e6,
            4 * 176.2e6,
            8,
            2,
            1,
            2,
            kv_bytes=4 * 4096.0,
            server_gpus=1,
            link_gbps=50.0,
        ),
    )
}
