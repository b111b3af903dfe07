"""Writes tests/readers/lighteval/ with lighteval's own tracker; run once, in an environment with lighteval 0.13.0.

python -m venv /tmp/lighteval && /tmp/lighteval/bin/pip install lighteval==0.13.0
/tmp/lighteval/bin/python tests/readers/make_lighteval.py
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def main() -> None:
    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.models.abstract_model import ModelConfig
    from lighteval.models.model_output import ModelResponse
    from lighteval.tasks.requests import Doc
    from written import groups, truth

    answers = truth()
    answers = answers[(answers["benchmark"] == "aime24") & (answers["seed"] < 2)]
    for place, rows in groups(answers, "method", "seed"):
        tracker = EvaluationTracker(str(HERE / "lighteval" / f"{place['method']}-s{place['seed']}"), save_details=True)
        tracker.general_config_logger.model_name = "lab/model"
        tracker.general_config_logger.model_config = ModelConfig(model_name="lab/model")
        for question, of_question in rows.groupby("question", sort=False):
            doc = Doc(query=of_question["prompt"].iloc[0], choices=[of_question["gold"].iloc[0]], gold_index=0,
                      id=question, task_name="aime24", num_samples=len(of_question))  # fmt: skip
            response = ModelResponse(text=list(of_question["response"]),
                                     output_tokens=[[7] * n for n in of_question["tokens"]])  # fmt: skip
            mean = float(of_question["correct"].mean())
            tracker.details_logger.log("aime24|0", doc, response, {"avg@n:n=4": mean})
        tracker.save()


if __name__ == "__main__":
    main()
