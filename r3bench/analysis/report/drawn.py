"""What a report shows of several answers to a question: pass@k and maj@k on its headline."""

from r3bench.analysis.figures.of_study import at_k_picture
from r3bench.analysis.figures.plots import Picture
from r3bench.analysis.output.at_k import SCORES, most_answers
from r3bench.analysis.output.at_k_tables import at_k_tables
from r3bench.analysis.output.frame import Table
from r3bench.analysis.results import Results
from r3bench.analysis.statistics.prepare import benchmark_sets
from r3bench.errors import StateError


def drawn_answers(results: Results, headline: str) -> tuple[list[Picture], list[str]]:
    """The figures that there are, and why one is missing although answers are stored."""
    found, notes = [], []
    for score in SCORES:
        if score == "maj" and results.folder is None:
            continue  # counts alone
        try:
            picture = at_k_picture(results, score, headline)
        except StateError as error:
            notes.append(f"no {score}@k: {error}")
            continue
        if picture is not None:
            found.append(picture)
    return found, notes


def drawn_tables(results: Results, headline: str) -> list[Table]:
    """pass@k on the headline; nothing with one answer to a question."""
    most = most_answers(results)
    if min((most.get(m, 0) for m in benchmark_sets(results)[headline]), default=0) < 2:
        return []
    return [t for t in at_k_tables(results, "pass") if t.key == f"pass@k-{headline}"]
