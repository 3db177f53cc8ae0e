import os

# bf16 matmuls of some CPUs die with SIGILL in oneDNN's newest kernels; must be set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
