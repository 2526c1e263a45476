"""Theorem 1 by exhaustive search: smallest RLI first gives the least prefill makespan (paper 4.4.1, appendix
A).

One link, one byte a step. Layer l computes once its reuse (stage 1, available from the start) and its
collective (stage 2, available when layer l - 1 has computed) have arrived. The search tries every pending
flow, and idling, in every step; since all sizes are whole steps, preemption within a step cannot gain
anything.
"""

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from mfsd.policy import Flow, PolicyConfig, Stage, Variant
from tests.specification import Decision, order_key


class Layer(NamedTuple):
    reuse: int
    collective: int
    compute: int


class State(NamedTuple):
    layer: int
    compute_left: int
    reuse: tuple[int, ...]  # bytes left, by layer
    collective: int  # bytes left, of this layer


Choice = tuple[Stage, int]  # what is served: stage and target layer
Instance = tuple[Layer, ...]


def start(instance: Instance) -> State:
    return State(0, instance[0].compute, tuple(x.reuse for x in instance), instance[0].collective)


def pending(state: State) -> list[Choice]:
    """Flows that could be served now."""
    flows = [(Stage.REUSE, target) for target, left in enumerate(state.reuse) if left]
    return [*flows, (Stage.COLLECTIVE, state.layer)] if state.collective else flows


def step(instance: Instance, state: State, served: Choice | None) -> State:
    """One step: one byte of `served` arrives; the layer computes if its inputs were there at the start."""
    layer, compute_left, reuse, collective = state
    ready = not reuse[layer] and not collective
    if served is not None and served[0] is Stage.REUSE:
        reuse = tuple(left - (target == served[1]) for target, left in enumerate(reuse))
    elif served is not None:
        collective -= 1
    compute_left -= ready
    if compute_left == 0:
        layer += 1
        if layer < len(instance):
            compute_left, collective = instance[layer].compute, instance[layer].collective
    return State(layer, compute_left, reuse, collective)


def makespan(instance: Instance, pick: Callable[[State, list[Choice]], Choice]) -> int:
    state, steps = start(instance), 0
    while state.layer < len(instance):
        flows = pending(state)
        state = step(instance, state, pick(state, flows) if flows else None)
        steps += 1
    return steps


def least_makespan(instance: Instance) -> int:
    @cache
    def best(state: State) -> int:
        if state.layer == len(instance):
            return 0
        choices: list[Choice | None] = [*pending(state)]
        if state.compute_left and not state.reuse[state.layer] and not state.collective:
            choices.append(None)  # idling helps none, but while the layer computes it ends
        return 1 + min(best(step(instance, state, choice)) for choice in choices)

    return best(start(instance))


def smallest_key_first(config: PolicyConfig) -> Callable[[State, list[Choice]], Choice]:
    def pick(state: State, flows: list[Choice]) -> Choice:
        def key(choice: Choice) -> tuple[int, ...]:
            stage, target = choice
            flow = Flow(
                stage=stage,
                sequence=target,
                layer_target=target,
                rank=0,
                remaining_bytes=1,
                rate_bytes_per_s=1,
            )
            return order_key(config, flow, Decision(8), state.layer)

        return min(flows, key=key)

    return pick


def largest_rli_first(state: State, flows: list[Choice]) -> Choice:
    return max(flows, key=lambda choice: choice[1])


LAYERS = [Layer(*sizes) for sizes in product((0, 1, 3), (0, 1, 2), (1, 2))]
INSTANCES = [
    *product(LAYERS, LAYERS),
    *product(LAYERS[::2], LAYERS[1::2], LAYERS[::3]),
]


@pytest.mark.parametrize("variant", Variant)
def test_smallest_rli_first_gives_the_least_makespan(variant: Variant) -> None:
    pick = smallest_key_first(PolicyConfig(variant=variant))
    worse = [i for i in INSTANCES if makespan(i, pick) != least_makespan(i)]
    assert worse == []


def test_the_search_tells_orders_apart() -> None:
    """The opposite order must lose somewhere, or the instances could not fail at all."""
    worse = [i for i in INSTANCES if makespan(i, largest_rli_first) > least_makespan(i)]
    assert len(worse) > len(INSTANCES) / 4
