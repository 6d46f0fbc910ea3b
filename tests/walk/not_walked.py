"""What the walk of the documentation leaves out, by page: why, or by the first line of a block why."""

NOT_WALKED: dict[str, str | dict[str, str]] = {
    "README.md": {
        'pip install "graphwright[cpu]"      # or [gpu] for an NVIDIA GPU': "the walk begins with it, with the wheel of this checkout",
        "make demo        # a U-Net trained in half its memory: measured, proved equal, report.html written": "minutes, and of a checkout; "
        "tests/commands/test_demo.py runs the demo on smaller images, continuous integration runs make test",
    },
    "docs/index.md": {
        'pip install "graphwright[cpu]"      # or [gpu] for an NVIDIA GPU': "the walk begins with it, with the wheel of this checkout",
        "$ graphwright demo": "minutes; tests/commands/test_demo.py runs the demo on smaller images",
    },
    "docs/costs.md": {
        "$ graphwright max-batch plain.keras --trust --budget 65MiB --measure": "TensorFlow's own order is partly chance",
    },
    "docs/devices.md": "its compiler is 230 MB, and takes minutes; tests/memory/xla/test_targets.py runs it",
    "docs/benchmarks.md": "minutes to hours; tests/bench imports the benchmarks",
}
