"""Pretended devices: lowering and compiling for a GPU that is not there.

Lowering takes the architecture from the abstract mesh's device. ``AbstractDevice`` has no compute capability, and
without one Mosaic GPU assumes sm_90 silently; hence the subclass. Compiling goes through a compile-only PJRT
client, which takes a textual description of the GPU and then runs the same code path as on a real one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh

from .rung import Skip


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One representative device of a target. ``capability`` as JAX spells it, ``"9.0"``."""

    kind: str
    capability: str
    cores: int


GPUS: dict[str, Gpu] = {
    "sm90": Gpu("NVIDIA H100 80GB HBM3", "9.0", 132),
    "sm100": Gpu("NVIDIA B200", "10.0", 148),
}


@dataclasses.dataclass(frozen=True)
class _PretendedDevice(AbstractDevice):
    compute_capability: str = ""

    @property
    def core_count(self) -> int:
        return self.num_cores


@contextlib.contextmanager
def pretend(target: str, cores: int | None = None) -> Iterator[None]:
    """Inside, JAX traces and lowers as if the default device were a ``target`` GPU, with ``cores`` in place of its own."""
    gpu = GPUS[target]
    device = _PretendedDevice(
        device_kind=gpu.kind, num_cores=cores or gpu.cores, platform="gpu", compute_capability=gpu.capability
    )
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        yield


def compile_only_topology(target: str) -> Any:
    """A one-device topology that compiles for ``target``.

    Raises:
      Skip: if the installed JAX has no CUDA plugin.
    """
    try:
        return topologies.get_topology_desc(
            platform="cuda", target_config=_target_config(GPUS[target]), topology="1x1x1"
        )
    except Exception as error:
        raise Skip(f"no compile-only CUDA client (install jax-cuda13-plugin and -pjrt): {error}") from error


def matching_device(target: str) -> Any:
    """The real GPU to run on.

    Raises:
      Skip: if there is none, or it is of another architecture.
    """
    try:
        device = jax.devices("gpu")[0]
    except RuntimeError:
        raise Skip("no GPU on this machine") from None
    capability = getattr(device, "compute_capability", "unknown")
    if capability != GPUS[target].capability:
        raise Skip(f"the GPU here is {device.device_kind} (capability {capability}), the port is for {target}")
    return device


def _target_config(gpu: Gpu) -> str:
    # Only the compute capability decides what ptxas is asked for; the rest are an H100's limits, which XLA
    # requires to be set.
    major, minor = gpu.capability.split(".")
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: ACCELERATED_FEATURES }}
  name: "{gpu.kind}" device_vendor: "NVIDIA Corporation" device_address_bits: 64
  core_count: {gpu.cores} fpus_per_core: 128 clock_rate_ghz: 1.9
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 device_memory_size: 84942979072
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{gpu.kind}"
"""
