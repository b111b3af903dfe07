"""Studies in every state, as `status` would find them; the snapshots are of these."""

from r3bench.sweep.status import CellStatus, StudyStatus

HOLDER = "process 4711 on node17.cluster.example.org since 2026-01-02T03:04:05+00:00"
BROKEN = (
    "bug: FileNotFoundError: [Errno 2] No such file or directory: "
    "'/data/shared/projects/mathematics/heldout/questions-2026-01.jsonl'; expected the questions of task 'heldout'"
)


def cell(name: str, seed: int, state: str, **more: object) -> CellStatus:
    """One run of a study."""
    return CellStatus(f"{name}-s{seed}-0123456789ab", name, seed, state, **more)  # type: ignore[arg-type]


def ended(name: str, seed: int, score: float) -> CellStatus:
    """A finished run."""
    return cell(name, seed, "finished", step=20, steps=20, tokens=61440, seconds=41.0, rate=1498.5, left=0.0,
                accuracy={"heldout": score}, attempts=1)  # fmt: skip


def at_work(name: str, seed: int, phase: str, **more: object) -> CellStatus:
    """A running one."""
    return cell(name, seed, "running", phase=phase, attempts=1, host="node17", process=4712 + seed, devices="0,1",
                **more)  # fmt: skip


SMALL = StudyStatus(
    "live",
    HOLDER,
    [
        ended("base-model", 0, 0.037),
        ended("base", 0, 0.412),
        cell("base", 1, "diverged", step=7, steps=7, tokens=21504, seconds=14.0, rate=1536.0, left=0.0, accuracy={},
             failure="loss is nan at step 7", attempts=1),
        at_work("replay", 0, "training", step=5, steps=20, tokens=15360, seconds=10.0, rate=1536.0, left=30.0),
        at_work("replay", 1, "evaluating", step=20, steps=20, tokens=61440, seconds=41.0, rate=1498.5, answers=300,
                asked=800),
        at_work("closeness", 0, "starting"),
        cell("closeness", 1, "failed", step=0, failure=BROKEN, attempts=3),
        cell("replay+closeness", 0, "interrupted", step=3, steps=20, failure="preempted: lost \x1b[31mred", attempts=1),
        cell("replay+closeness", 1, "to do", excluded="a power cut"),
    ],
    left=5025.0,
)  # fmt: skip

LONG = StudyStatus(
    "long",
    None,
    [
        ended(f"retrospective.random+learning_rate.{rate}+length_bonus+ranking.entropy_of_the_first_half", seed, 0.5)
        if rate < "4"
        else cell(f"retrospective.random+learning_rate.{rate}+length_bonus+ranking.entropy_of_the_first_half", seed,
                  "to do")
        for rate in ("1e-4", "2e-4", "4e-4")
        for seed in (0, 1)
    ],
)  # fmt: skip

MANY = StudyStatus(
    "many",
    HOLDER,
    [ended(f"r.l{level}", seed, 0.25 + level / 100) for level in range(12) for seed in range(3)]
    + [at_work("late", seed, "training", step=1, steps=900, left=98000.0) for seed in range(2)]
    + [cell("last", seed, "to do") for seed in range(3)],
    left=170000.0,
)

CASES = {"small": SMALL, "long": LONG, "many": MANY}
