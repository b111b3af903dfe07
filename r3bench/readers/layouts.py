r"""How each tool lays out its answers. Every reader returns one record per answer.

A record has `question`, `correct` (None without a verdict) and what the file knows of `benchmark`, `response`, `gold`,
`tokens`, `truncated` and `identity` (of the question's text: two texts under one id are an error).

Layouts as their tools write them; file and version that were read are named beside each.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

from r3bench.errors import DataError, nearest
from r3bench.readers.file import json_lines, plain, read_json, read_table
from r3bench.readers.options import Options
from r3bench.readers.verdict import chosen, judged, spread, verdict

Record = dict[str, Any]
LM_EVAL_OWN = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash",
               "prompt_hash", "target_hash")  # fmt: skip
VERL_OWN = ("input", "output", "gts", "score", "step", "data_source", "uid", "request_id", "reward")
TRL_OWN = ("step", "prompt", "completion", "advantage", "image", "images")
PART = re.compile(r"(.+)_(\d+)")


def digest(value: Any) -> str:
    """A short name for a text, the same wherever it is asked."""
    return hashlib.sha256(str(value).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def said(value: Any) -> str | None:
    """The text of an answer: a string, or the last message of a conversation."""
    value = plain(value)
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if isinstance(value, list):  # a message in parts
        value = "".join(str(part.get("text") or "") for part in value if isinstance(part, dict))
    return None if value is None else str(value)


def lm_eval(path: Path, options: Options) -> list[Record]:
    """`samples_<task>_<date>.jsonl` of `lm_eval --log_samples`: one object per question and filter.

    lm-evaluation-harness 0.4.13: `lm_eval/loggers/evaluation_tracker.py` (`save_results_samples`) writes the objects
    that `lm_eval/evaluator.py` makes: `doc_id`, `doc`, `target`, `resps`, `filtered_resps`, `filter`, `metrics` (names
    of the scores beside them), `doc_hash`.
    """
    rows = [row for _, row in json_lines(path)]
    filters = sorted({str(row.get("filter", "none")) for row in rows})
    if options.filter is not None and options.filter not in filters:
        raise DataError(f"{path}: no filter '{options.filter}'{nearest(options.filter, filters)}")
    if options.filter is None and len(filters) > 1 and options.verdicts:
        raise DataError(f"{path}: filters {', '.join(filters)}: which one counts? (--filter NAME, or filter: in a map)")
    wanted = options.filter or filters[0]
    rows = [row for row in rows if str(row.get("filter", "none")) == wanted]
    counts = [max(1, len(_responses(row.get("resps")))) for row in rows]
    verdicts: list[list[Any]] = [[None] * n for n in counts]
    if options.verdicts and rows:
        named = rows[0].get("metrics") or [k for k in rows[0] if k not in LM_EVAL_OWN]
        metric = chosen({m: rows[0].get(m) for m in named}, options.metric, str(path))
        verdicts = spread([_number(row.get(metric), path) for row in rows], counts, options.right, str(path))
    found = []
    for row, verdicts_here in zip(rows, verdicts, strict=True):
        texts = _responses(row.get("resps"))
        same = len(texts) == len(verdicts_here)
        first = _responses(row.get("filtered_resps"))
        for i, one in enumerate(verdicts_here):
            found.append(
                {
                    "question": row.get("doc_id"),
                    "correct": one,
                    "response": texts[i] if same else next(iter(first or texts), None),
                    "gold": None if row.get("target") is None else str(row["target"]),
                    "identity": row.get("doc_hash"),
                }
            )
    return found


def _responses(value: Any) -> list[str]:
    """All texts in `resps`: a list per request, with a list of repeats or one text in it."""
    if value is None:
        return []
    if isinstance(value, list):
        return [text for part in value for text in _responses(part)]
    return [str(value)]


def _number(value: Any, path: Path) -> float | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool | int | float):
        return float(value)
    judged = verdict(value, None, str(path))
    return None if judged is None else float(judged)


def verl(path: Path, options: Options) -> list[Record]:
    """`<step>.jsonl` of verl's `trainer.validation_data_dir`: one object per answer.

    verl: `verl/trainer/ppo/ray_trainer.py` (`_dump_generations`): `input` (decoded prompt), `output`, `gts`, `score`,
    `step`, and whatever the reward function adds, such as `acc`. It has no id: a question is its prompt.
    """
    found = []
    for number, row in json_lines(path):
        where = f"{path}: line {number}"
        extra = {k: v for k, v in row.items() if k not in VERL_OWN and isinstance(v, bool | int | float)}
        key = options.metric or ("acc" if "acc" in extra else "score")
        value = row.get(chosen({**extra, "score": row.get("score")}, key, where))
        asked = f"{row.get('input')}\0{row.get('gts')}"
        found.append(
            {
                "question": digest(asked),
                "correct": judged(value, options, f"{where}: {key}"),
                "response": row.get("output"),
                "gold": None if row.get("gts") is None else str(row["gts"]),
            }
            | ({"benchmark": str(row["data_source"])} if row.get("data_source") else {})
        )
    return found


def lighteval(path: Path, options: Options) -> list[Record]:
    """`details/<model>/<date>/details_<task>_<date>.parquet` of `lighteval --save-details`: one row per question.

    lighteval 0.13: `src/lighteval/logging/info_loggers.py` (`DetailsLogger.Detail`): `doc` (`id`, `query`, `choices`,
    `gold_index`), `model_response` (`text`: all answers, `output_tokens`), `metric` (name -> score).
    """
    rows = [plain(row) for row in read_table(path).to_dict("records")]
    counts = [max(1, len(row["model_response"].get("text") or [])) for row in rows]
    verdicts: list[list[Any]] = [[None] * n for n in counts]
    if options.verdicts and rows:
        metric = chosen({k: v for k, v in rows[0]["metric"].items() if v is not None}, options.metric, str(path))
        scores = [_number(row["metric"].get(metric), path) for row in rows]
        verdicts = spread(scores, counts, options.right, str(path))
    found = []
    for place, (row, verdicts_here) in enumerate(zip(rows, verdicts, strict=True)):
        doc, texts = row["doc"], row["model_response"].get("text") or []
        lengths = [len(ids) for ids in row["model_response"].get("output_tokens") or []]
        for i, one in enumerate(verdicts_here):
            record = {
                "question": doc.get("id") or str(place),
                "correct": one,
                "response": texts[i] if i < len(texts) else None,
                "gold": _choice(doc),
                "identity": digest(doc.get("query")),
            }
            if len(lengths) == len(texts) and i < len(lengths):
                record["tokens"] = lengths[i]
            found.append(record)
    return found


def _choice(doc: dict[str, Any]) -> str | None:
    index, choices = doc.get("gold_index"), doc.get("choices") or []
    at = index[0] if isinstance(index, list) and index else index
    return str(choices[at]) if isinstance(at, int) and 0 <= at < len(choices) else None


def matharena(path: Path, options: Options) -> list[Record]:
    """`outputs/<competition>/<model>/<problem>.json` (or .json.zst) of MathArena: one file per problem.

    matharena: `src/matharena/runs.py` (`Runs.to_dict`): `idx`, `problem`, `gold_answer`, and lists with an entry per
    answer: `answers` (parsed), `correct`, `messages`, `detailed_costs`.
    """
    run = read_json(path)
    texts, costs = run.get("messages") or [], run.get("detailed_costs") or []
    stored = run.get("correct") or []
    found = []
    for i in range(max(len(stored), len(texts))):
        spot = f"{path}: answer {i + 1}"
        value = stored[i] if i < len(stored) else None
        record = {
            "question": run.get("idx"),
            "correct": judged(value, options, spot),
            "response": said(texts[i]) if i < len(texts) else None,
            "gold": None if run.get("gold_answer") is None else str(run["gold_answer"]),
            "identity": digest(run.get("problem")),
        }
        spent = costs[i].get("output_tokens") if i < len(costs) and isinstance(costs[i], dict) else None
        if isinstance(spent, int | float):
            record["tokens"] = spent
        found.append(record)
    return found


def opencompass(path: Path, options: Options) -> list[Record]:
    """`<date>/results/<model>/<dataset>.json` of OpenCompass with `--dump-eval-details`, or its `predictions`.

    opencompass: `tasks/openicl_eval.py` writes `details`: a mapping of numbers to `correct`, `predictions`,
    `references` (or `pred`, `answer`), or since `openicl/icl_evaluator/icl_base_evaluator.py` (`evaluate`) a list in
    which each of these has an entry per repeat. `predictions` hold `prediction` and `gold`, and no verdict.
    """
    stored = read_json(path)
    if "details" in stored:
        details = stored["details"]
        pairs = list(enumerate(details)) if isinstance(details, list) else [
            (k, v) for k, v in details.items() if isinstance(v, dict)
        ]  # fmt: skip
        return [record for key, one in pairs for record in _details(path, key, one, options)]
    start = _before(path)
    found = []
    for key, row in stored.items():
        if options.verdicts:
            raise DataError(
                f"{path}: OpenCompass's predictions hold no verdict; read its results, written with "
                "--dump-eval-details, or grade anew (--regrade)"
            )
        texts = row.get("prediction")
        for one in texts if isinstance(texts, list) else [texts]:
            gold = row.get("gold")
            gold = gold[0] if isinstance(gold, list) and gold else gold
            found.append(
                {"question": int(key) + start, "correct": None, "response": one,
                 "gold": None if gold is None else str(gold)}
            )  # fmt: skip
    return found


def _details(path: Path, key: Any, one: Record, options: Options) -> list[Record]:
    names = ("correct", "is_correct", "cascade_correct")
    name = options.metric or next((n for n in names if n in one), None)
    if options.verdicts and name not in one:
        raise DataError(f"{path}: details {key}: no '{name or 'correct'}'{nearest(name or 'correct', one)}")
    values = plain(one.get(name)) if name is not None else None
    listed = values if isinstance(values, list) else [values]

    def part(*keys: str) -> list[Any]:
        value = next((one[k] for k in keys if k in one), None)
        return value if isinstance(value, list) and len(value) == len(listed) else [value] * len(listed)

    texts, golds = part("origin_prediction", "pred", "predictions", "prediction"), part("answer", "references", "gold")
    return [
        {
            "question": one.get("example_abbr", key),
            "correct": judged(v, options, f"{path}: details {key}"),
            "response": None if t is None else str(t),
            "gold": None if g is None else str(g),
        }
        for v, t, g in zip(listed, texts, golds, strict=True)
    ]


def _before(path: Path) -> int:
    """Questions in the parts before this one: `gsm8k_2.json` follows `gsm8k_0.json` and `gsm8k_1.json`."""
    part = PART.fullmatch(path.stem)
    if part is None or not path.with_name(f"{part[1]}_0.json").exists():
        return 0
    return sum(len(read_json(path.with_name(f"{part[1]}_{i}.json"))) for i in range(int(part[2])))


def openai_evals(path: Path, options: Options) -> list[Record]:
    """The event log of `oaieval` (openai/evals): a line with the `spec`, events, a line with the `final_report`.

    evals: `evals/record.py` (`LocalRecorder`, `record_match`): an event has `sample_id`, `type` and `data`; one of type
    `match` has `data.correct`, one of type `sampling` the text in `data.sampled`. Without matches the events of type
    `metrics` are read.
    """
    events, benchmark = [], None
    for number, row in json_lines(path):
        if "spec" in row:
            benchmark = row["spec"].get("eval_name") or row["spec"].get("base_eval")
        elif "type" in row:
            events.append((number, row))
    texts: dict[Any, list[str | None]] = {}
    for _, event in events:
        if event["type"] == "sampling":
            sampled = event["data"].get("sampled")
            texts.setdefault(event["sample_id"], []).extend(
                map(said, sampled) if isinstance(sampled, list) and not _chat(sampled) else [said(sampled)]
            )
    kind = "match" if any(e["type"] == "match" for _, e in events) else "metrics"
    found: list[Record] = []
    seen: dict[Any, int] = {}
    for number, event in events:
        if event["type"] != kind:
            continue
        where, data = f"{path}: line {number}", event["data"]
        key = options.metric or "correct"
        if kind == "metrics" and options.verdicts:
            key = chosen({k: v for k, v in data.items() if isinstance(v, bool | int | float)}, options.metric, where)
        i = seen[event["sample_id"]] = seen.get(event["sample_id"], -1) + 1
        answers = texts.get(event["sample_id"], [])
        gold = data.get("expected")
        gold = gold[0] if isinstance(gold, list) and gold else gold
        record = {
            "question": event["sample_id"],
            "correct": judged(data.get(key), options, f"{where}: {key}"),
            "response": answers[i] if i < len(answers) else None,
            "gold": None if gold is None else str(gold),
        }
        found.append(record | ({"benchmark": str(benchmark)} if benchmark else {}))
    if not found:
        raise DataError(f"{path}: no event of type match or metrics among {len(events)}; the evaluation didn't finish")
    return found


def _chat(value: list[Any]) -> bool:
    return bool(value) and isinstance(value[0], dict)


def trl(path: Path, options: Options) -> list[Record]:
    """`completions/completions_<step>.parquet` of TRL's GRPO trainer with `log_completions`: one row per answer.

    TRL 1.16: `trl/trainer/grpo_trainer.py` (`log`): `step`, `prompt`, `completion`, a column per reward function,
    `advantage`, and what reward functions log beside. It has no id: a question is its prompt.
    """
    frame = read_table(path)
    numeric = [
        c for c in frame.columns
        if c not in TRL_OWN and all(isinstance(v, bool | int | float) for v in map(plain, frame[c]))
    ]  # fmt: skip
    rewards = {str(c): None for c in numeric}
    several = len(rewards) != 1 and options.metric is None and not options.verdicts
    name = None if several else chosen(rewards, options.metric, str(path))
    gold = next((c for c in ("gold", "answer", "solution", "ground_truth") if c in frame), None)
    found = []
    for i, row in enumerate(frame.to_dict("records")):
        spot = f"{path}: row {i + 1}"
        value = plain(row[name]) if name is not None else None
        found.append(
            {
                "question": digest(_asked(plain(row["prompt"]))),
                "correct": judged(value, options, f"{spot}: {name}"),
                "response": said(row["completion"]),
                "gold": None if gold is None or row[gold] is None else str(row[gold]),
            }
        )
    return found


def _asked(prompt: Any) -> Any:
    """A prompt, its messages with their keys sorted and without those that parquet filled in."""
    if isinstance(prompt, list):
        return [
            dict(sorted((k, v) for k, v in m.items() if v is not None)) if isinstance(m, dict) else m for m in prompt
        ]
    return prompt
