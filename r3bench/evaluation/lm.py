"""The model as lm-eval sees it. Answers that are stored are not sampled again; new ones are graded and stored."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from r3bench.evaluation import shards
from r3bench.evaluation.backends.sampling import Backend, Completion, Draw, Sampling, draw_seed
from r3bench.evaluation.journal import Journal
from r3bench.evaluation.scorer import Scorer
from r3bench.grading import Grader, Verdict


class StoredLM(LM):
    """Answers lm-eval's requests of one task from its folder, sampling what is missing shard by shard.

    Args:
        backend: samples answers.
        folder: where the task's shards are.
        sampling: how tokens are chosen.
        seed: of the evaluation; every answer's own seed follows from it.
        settings: what the answers depend on, kept in every shard.
        grader: gives the verdicts.
        progress: called with (answers done, answers asked for).
    """

    def __init__(
        self,
        *,
        backend: Backend,
        folder: Path,
        sampling: Sampling,
        seed: int,
        settings: dict[str, Any],
        grader: Grader | Scorer,
        progress: Callable[[int, int], None],
    ) -> None:
        super().__init__()
        self.backend, self.folder, self.sampling, self.seed = backend, folder, sampling, seed
        self.settings, self.grader, self.progress = settings, grader, progress

    @property
    def tokenizer_name(self) -> str:
        """Names the chat template for lm-eval's request cache, which is not used."""
        return self.backend.name

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A chat as prompt text."""
        return self.backend.chat(chat_history)

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """One response per request; the n-th request of a question is its repeat n."""
        keys: list[tuple[str, int]] = []
        prompts: dict[str, str] = {}
        docs: dict[str, dict[str, Any]] = {}
        seen: dict[str, int] = {}
        for request in requests:
            question = request.doc["id"]
            prompts[question], docs[question] = request.args[0], request.doc
            keys.append((question, seen.get(question, 0)))
            seen[question] = keys[-1][1] + 1
        samples = max(seen.values(), default=0)
        stored = shards.read(self.folder, self.settings)
        have = {(row["question"], row["repeat"]) for row in stored}
        for row in stored:  # lm-eval scores all answers; those graded before are not graded again
            if row["grader"] == self.grader.name:
                verdict = Verdict(row["correct"], row["extracted"], row["reason"], row["timed_out"])
                self.grader.remember(row["extracted"], row["gold"], verdict)
        journal = Journal(self.folder, self.settings, have)
        done = sum(key in have or key in journal.answers for key in keys)
        self.progress(done, len(keys))

        lock = threading.Lock()  # shards may be sampled from several threads

        def finished(count: int) -> None:
            nonlocal done
            with lock:
                done += count
                self.progress(done, len(keys))

        missing = shards.blocks(list(prompts), samples, have)
        asked = dict.fromkeys(question for block in missing for question in block.questions)
        self.backend.check([prompts[question] for question in asked], self.sampling)
        for block, answers in self._sampled(missing, prompts, finished, journal):
            self._store(block, answers, docs)
            journal.done(block.name)
        texts = {(row["question"], row["repeat"]): row["response"] for row in shards.read(self.folder)}
        return [texts[key] for key in keys]

    def _sampled(
        self, blocks: Sequence[shards.Block], prompts: dict[str, str], finished: Callable[[int], None], journal: Journal
    ) -> Iterator[tuple[shards.Block, list[Completion]]]:
        """Blocks with their answers, as they come."""

        def sample(block: shards.Block) -> list[Completion]:
            draws = self._draws(block, prompts)
            found = {i: a for i, d in enumerate(draws) if (a := journal.answers.get((d.question, d.repeat)))}
            left = [i for i in range(len(draws)) if i not in found]

            def answered(place: int, answer: Completion) -> None:
                journal.add(block.name, draws[left[place]], answer)

            if left:
                new = self.backend.generate([draws[i] for i in left], self.sampling, finished, answered)
                found |= zip(left, new, strict=True)
            return [found[i] for i in range(len(draws))]

        at_once = self.backend.plan(len(blocks))
        if at_once == 1:
            for block in blocks:
                yield block, sample(block)
            return
        pool = ThreadPoolExecutor(at_once)
        try:
            running = {pool.submit(sample, block): block for block in blocks}
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:  # one failed, or Ctrl-C: what is under way is of no use
            self.backend.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _draws(self, block: shards.Block, prompts: dict[str, str]) -> list[Draw]:
        return [
            Draw(question, repeat, draw_seed(self.seed, question, repeat), prompts[question])
            for question in block.questions
            for repeat in block.repeats
        ]

    def _store(self, block: shards.Block, answers: Sequence[Completion], docs: dict[str, dict[str, Any]]) -> None:
        draws = self._draws(block, dict.fromkeys(block.questions, ""))
        asked = [docs[draw.question] for draw in draws]
        gold = [doc["answer"] for doc in asked]
        texts = [answer.text for answer in answers]
        own = isinstance(self.grader, Scorer)
        verdicts = self.grader.grade_docs(texts, asked) if own else self.grader.grade(texts, gold)  # type: ignore[union-attr]
        rows = [
            {
                "question": draw.question,
                "repeat": draw.repeat,
                "seed": draw.seed,
                "response": answer.text,
                "tokens": answer.tokens,
                "gold": wanted,
                "extracted": verdict.extracted,
                "reason": verdict.reason,
                "correct": verdict.correct,
                "truncated": answer.truncated,
                "timed_out": verdict.timed_out,
                "grader": self.grader.name,
            }
            for draw, answer, wanted, verdict in zip(draws, answers, gold, verdicts, strict=True)
        ]
        shards.write(self.folder, block.name, rows, self.settings)

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Not offered: the tasks are answered by sampling."""
        raise NotImplementedError("only generate_until tasks can be evaluated")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Not offered: the tasks are answered by sampling."""
        raise NotImplementedError("only generate_until tasks can be evaluated")


def digest(docs: Sequence[dict[str, Any]]) -> str:
    """12 hex digits over the ids, problems and answers of a task."""
    hashed = hashlib.sha256()
    for doc in docs:
        hashed.update(f"{doc['id']}\0{doc['problem']}\0{doc['answer']}\0".encode())
    return hashed.hexdigest()[:12]
