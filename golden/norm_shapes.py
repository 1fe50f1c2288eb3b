"""Shapes on which the goldens of JAX's own normalizations run: rows that no block divides, long rows, large arrays."""

FEW = {
    "2x3x256 f32": dict(shape=(2, 3, 256), dtype="float32"),
    "1x5x1001 bf16": dict(shape=(1, 5, 1001), dtype="bfloat16"),
    "2x2x100 f16": dict(shape=(2, 2, 100), dtype="float16"),
}
LONG = {"1x2x4500 bf16": dict(shape=(1, 2, 4500), dtype="bfloat16")}  # more than one block of columns
LARGE = {
    "8x2048x4096 bf16": dict(shape=(8, 2048, 4096), dtype="bfloat16"),
    "8x2048x4096 f32": dict(shape=(8, 2048, 4096), dtype="float32"),
    "8x2048x1001 bf16": dict(shape=(8, 2048, 1001), dtype="bfloat16"),
    "8x2048x1001 f32": dict(shape=(8, 2048, 1001), dtype="float32"),
}


def small(operation: str) -> dict[str, dict]:
    """The shapes for checks without a GPU, by label: each call site, and the gradients through all."""
    return (
        _labels(operation, FEW)
        | _labels(f"{operation}_forward", FEW)
        | _labels(f"{operation}_backward", FEW | LONG)
        | _labels("example:gradients", {"2x3x256 f32": FEW["2x3x256 f32"]})
    )


def timed(operation: str) -> dict[str, dict]:
    """The shapes for measurements, by label."""
    return _labels(operation, LARGE) | _labels(f"{operation}_forward", LARGE) | _labels(f"{operation}_backward", LARGE)


def _labels(entry: str, shapes: dict[str, dict]) -> dict[str, dict]:
    name = entry.removeprefix("example:")
    return {f"{name} {label}": dict(entry=entry, **shape) for label, shape in shapes.items()}
