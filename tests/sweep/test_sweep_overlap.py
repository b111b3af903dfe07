"""Training questions that stand in a benchmark are counted for a study and told by its tables."""

import json

from r3bench.analysis.reading.study import _overlap_notes
from r3bench.seals import unsealed
from r3bench.sweep.opening import open_study
from r3bench.sweep.overlap import note_overlap


def test_copies_are_counted_and_noted(tmp_path, monkeypatch):
    from r3bench.training.questions.embedded import questions

    monkeypatch.chdir(tmp_path)
    test = questions("test")[:2]
    long = "Start with 7, subtract 1, add 5, add 1, subtract 3, add 2, subtract 4, add 6."
    rows = [{"id": "a", "problem": test[0]["problem"], "answer": "1"}, {"id": "b", "problem": long, "answer": "1"}]
    (tmp_path / "leaky.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "leaky.yaml").write_text(
        "recipe: quickstart\nfactors: {trainer.learning_rate: [1.0e-4, 2.0e-4]}\nset: {data.name: leaky.jsonl}\n"
    )
    study = open_study("./leaky.yaml", tmp_path / "runs")
    study.root.mkdir(parents=True)
    found = note_overlap(study)
    assert found["embedded"]["questions"] == 400
    assert found["embedded"]["exact"] == 1
    assert _overlap_notes(study.root)[0].startswith("training questions found in embedded: 1 word for word")
    assert unsealed(json.loads((study.root / "overlap.json").read_text()), "overlap.json") == found
