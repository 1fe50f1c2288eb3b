"""Settings for all tests: JAX runs on the CPU.

Set before anything imports JAX: with no platform named, JAX tries the CUDA plugin that offline
compilation needs, and complains that there is no cuDNN.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
