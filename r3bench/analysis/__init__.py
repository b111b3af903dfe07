"""Reads result files and says what they show. Imports neither torch nor TRL; heavy plotting is imported on use."""

from typing import Any

_WHERE = {
    "analyze": "r3bench.analysis.output.external",
    "load_study": "r3bench.analysis.reading.study",
    "render_tables": "r3bench.analysis.output.tables",
    "trace": "r3bench.analysis.output.provenance",
    "write_report": "r3bench.analysis.report.page",
    "write_tables": "r3bench.analysis.output.tables",
}
__all__ = [
    "analyze", "load_study", "render_tables", "trace", "write_report", "write_tables",
]  # fmt: skip
# names are looked up on use, so that importing this package costs nothing


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'r3bench.analysis' has no attribute '{name}'")
