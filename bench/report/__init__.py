"""Runs the benchmarks and writes docs/benchmarks.md from what they measured."""
