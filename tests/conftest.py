import os

# bf16 matmuls of some CPUs die with SIGILL in oneDNN's newest kernels; must be set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

from hypothesis import settings

# No test may depend on how fast the machine is.
settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")
