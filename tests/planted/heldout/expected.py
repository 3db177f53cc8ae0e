"""What each script here truly suffers from. They were written after the rules, in styles that the suite has not."""

EXPECTED = {
    "lightning_like": {"per-item-fetch"},
    "hf_dicts": {"tokenize", "repeated-work"},
    "gzip_stream": {"decode-cpu"},
    "sqlite_rows": {"per-item-fetch"},
    "pil_photos": {"decode-cpu"},
    "functions_validate": {"validation-stall"},
    "npz_archives": {"shuffle-thrash"},
    "spectrograms": {"repeated-work"},
    "saves_often": {"checkpoint-stall"},
    "gan_two_optimizers": {"compute-bound", "healthy"},
    "fixed_length": {"padding"},
    "slow_mount": {"request-latency"},
    "chatty": {"logging-stall"},
    "metrics_each_step": {"host-sync"},
    "one_worker_wav": {"too-few-workers"},
    "well_fed": {"compute-bound", "healthy"},
}
