"""Every evidence counter of the components, counted again from the rows of a recorded run."""

import math
from collections import Counter

import numpy as np
from component_tools import NAN  # noqa: F401  (puts tests/reference on the path)
from reference_components import by_context, dominated, mean, peak_and_global
from step_check import KEPT, StepCheck


class StateLog:
    """The stored prefixes of `retrospective` after every batch."""

    def __init__(self):
        self.after = []  # per batch: question -> prefixes

    def watch(self, trainer):
        """Note the states of `trainer` after every batch; set its `state_log`."""
        trainer.state_log = self
        component = next((c for c in trainer.components if c.name == "retrospective"), None)
        if component is None:
            return
        observe = component.observe

        def noting(step):
            observe(step)
            self.after.append({q: [tuple(s.prefix.tolist()) for s in found] for q, found in component.states.items()})

        component.observe = noting


class Recount(StepCheck):
    """`counts` as the rows of the run tell it, to be equal to the trainer's evidence."""

    def __init__(self, trainer, on, losses=False):
        super().__init__(trainer, on, losses)
        self.counts = Counter()
        self.ages = (0, 0)  # least and most that replay's rows can be old together
        self.states = {}
        self.number = 0  # of the batch
        self.auc = 0.5  # the critic's, as logged
        self.lines = [line for line in trainer.state.log_history if "loss" in line]

    def count(self, key, amount=1):
        self.counts[key] += amount

    def mixed(self, batch, groups, mixes):
        """Called with all groups of a batch and what each was mixed with: (mix, drawn) or None."""
        fresh = [group for group in groups if group.kind == "fresh"]
        if "ranking" in self.on:
            self.ranking(groups, mixes)
        if "reflection" in self.on:
            self.reflection(batch, groups, mixes)
        if "replay" in self.on:
            self.replay(batch, groups, mixes)
        if "retrospective" in self.on:
            self.retrospective(batch, groups, fresh)
        for name in ("rescue", "repo", "exgrpo", "dynamic_sampling"):
            if name in self.on:
                self.rival(name, groups, fresh, mixes)
        self.logged(groups, fresh, mixes)
        self.number += 1

    @property
    def multiple(self):
        """Groups come in so many, on one process: their rows have to split into equal parts."""
        parts = self.trainer.args.steps_per_generation
        return next(n for n in range(1, parts + 1) if n * self.size % parts == 0)

    def rival(self, name, groups, fresh, mixes):
        """The counters of a baseline that is on alone."""
        rows = [(a, mix) for mix in mixes if mix is not None for a in mix[1]]
        if name != "dynamic_sampling":
            self.count(f"{name}/rows", len(rows))
        if name == "rescue":
            wrong = sum(not any(group.right) for group in fresh)
            self.count("rescue/groups_all_wrong", wrong)
            self.count("rescue/groups_no_history", wrong - len(rows))
        elif name == "repo":
            self.count("repo/groups_mixed", sum(mix is not None for mix in mixes))
            self.count("repo/groups_no_history", len(fresh) - sum(mix is not None for mix in mixes))
            coefficient = self.on["repo"].get("coefficient", 1.0)
            split = self.on["repo"].get("normalisation", "split") == "split"
            for mix, group in zip(mixes, groups, strict=True):
                rewards = [a.task for a in mix[1]] if mix else []
                whole = rewards if split else rewards + group.totals
                moved = [r for r in rewards if coefficient and abs(r - mean(whole)) > 1e-12]
                self.count("repo/rows_with_gradient", len(moved))
        elif name == "exgrpo":
            revisited = [mix for group, mix in zip(groups, mixes, strict=True) if group.revisited]
            self.count("exgrpo/groups_planned", len(revisited))
            self.count("exgrpo/groups_no_history", revisited.count(None))
        else:
            asked = [group for groups in self.rounds for group in groups]
            if self.on[name].get("max_rounds", 4):
                self.count(f"{name}/rounds", len(self.rounds))
                self.count(f"{name}/groups_seen", len(asked))
                self.count(f"{name}/groups_dead", sum(map(self.unwanted, asked)))
            dropped = [g for g in groups if self.unwanted(g) and not any(row.ranking for row in g.rows)]
            self.count(f"{name}/groups_dropped", len(dropped))

    def ranking(self, groups, mixes):
        s = self.on["ranking"]
        for group, mix in zip(groups, mixes, strict=True):
            everyone = s.get("scope", "truncated") == "failed"
            wrong = [row for row in group.rows if not row.correct and (everyone or row.truncated)]
            if any(group.right) and s.get("scope") != "truncated_anywhere":
                wrong = []
            solved = [a for a in self.store.get(group.question, []) if a.correct and a.kind == "fresh"]
            if s.get("when") == "no_history" and solved:
                wrong = []
            if group.kind not in s.get("into_provenance", ["fresh"]):
                wrong = []
            if wrong:
                got = [row.ranking for row in group.rows]
                self.count("ranking/groups")
                self.count(f"ranking/groups_{group.kind}")
                ordered = s.get("order") == "random" and len(wrong) > 1
                if s.get("order") == "length":
                    ordered = len({len(row.completion) for row in wrong}) > 1
                self.count("ranking/rows", len(wrong))
                self.count("ranking/reward", sum(got))
                self.count("ranking/groups_with_spread", max(got) > min(got))
                if s.get("order", "domination") in ("domination", "reversed", "shuffled"):
                    p = s.get("peak_fraction", 0.2)
                    settled = by_context([row.ranked for row in wrong], [row.completion for row in wrong])
                    own = [h[row.given :] for h, row in zip(settled, wrong, strict=True)]
                    scores = dominated([peak_and_global(h, p) for h in own])
                    self.count("ranking/dominations", sum(scores))
                    self.count("ranking/groups_without_domination", not any(scores))
                    ordered = any(scores)
                self.count("ranking/groups_ordered", ordered)
                among = [row.ranking for row in wrong]
                self.count("ranking/groups_spread_by_scope", max(got) > min(got) and max(among) == min(among))
                if s.get("unanchored_weight", 1.0) != 1 and mix is None and not any(group.right):
                    self.count("ranking/groups_rescaled", max(got) > min(got))

    def reflection(self, batch, groups, mixes):
        s = self.on["reflection"]
        if s.get("gradient") == "reattach":
            again = [a for mix in mixes if mix is not None for a in mix[1] if a.kind == "reflection"]
            self.count("reflection/rows_reattached", len(again))
        for group in groups:
            if group.kind == "reflection":
                self.count("reflection/groups")
                self.count("reflection/rows_correct", sum(group.right))
                self.count("reflection/converted", any(group.right))
                self.count("reflection/groups_with_gradient", max(group.totals) > min(group.totals))
        if batch.epoch + 1e-6 < s.get("warmup", 1.0):
            return
        asked = list(dict.fromkeys(batch.asked))
        hard = []
        for question in asked:
            tried = [a.correct for a in self.store.get(question, []) if a.kind == "fresh"][-KEPT:]
            if tried and mean(tried) < s.get("threshold", 0.25):
                hard.append(question)
        shown = 0
        for question in hard:
            others = [q for q in asked if q != question] if s.get("source") == "other" else [question]
            wrong = [a for q in others for a in self.store.get(q, []) if not a.correct and a.kind == "fresh"]
            shown += bool(wrong)
            self.count("reflection/questions_without_exemplar", not wrong)
        self.count("reflection/questions_hard", len(hard))
        limit = int(s.get("max_share", 0.25) * len(batch.asked) / self.size + 1e-9)
        planned = [group for group in groups if group.kind == "reflection"]
        wanted, multiple = min(shown, limit), self.multiple if s.get("placement", "append") == "append" else 1
        assert len(planned) == wanted - wanted % multiple, "as many hard questions are asked again as may be"
        self.count("reflection/groups_surplus", wanted % multiple)
        assert {group.question for group in planned} <= set(hard)
        self.count("reflection/groups_planned", len(planned))

    def replay(self, batch, groups, mixes):
        s = self.on["replay"]
        for group, mix in zip(groups, mixes, strict=True):
            if group.kind != "fresh" or len(set(group.right)) > 1:
                continue
            if mix is not None and mix[0].options.get("std") is not None:
                self.count("replay/groups_taken")  # by a re-attached reflection
                continue
            right = group.right[0]
            self.count(f"replay/groups_all_{'right' if right else 'wrong'}")
            if batch.epoch + 1e-6 < s.get("warmup", 1.0):
                self.count("replay/groups_waiting")
            elif mix is not None:
                self.count("replay/groups_mixed")
                self.count("replay/rows", len(mix[1]))
                self.count("replay/rows_correct", sum(a.correct for a in mix[1]))
                split = s.get("normalisation") == "split"
                parts = [[a.task for a in mix[1]], group.totals]
                uneven = any(len(set(part)) > 1 for part in (parts if split else [parts[0] + parts[1]]))
                self.count("replay/groups_with_gradient", uneven)
                for a in mix[1]:  # the same tokens may be stored at several steps
                    ages = [batch.step - other.step for other in mix[0].pool if other.completion == a.completion]
                    self.ages = (self.ages[0] + min(ages), self.ages[1] + max(ages))
            elif not (right and s.get("labels") == "positives"):
                self.count("replay/groups_no_history")

    def retrospective(self, batch, groups, fresh):
        s = self.on["retrospective"]
        value, retire = s.get("value", "value_head"), s.get("retire", 0.5)
        stored = {question: list(found) for question, found in self.states.items()}
        for group in groups:
            if group.kind != "continuation":
                continue
            first = group.rows[0]
            prefix = tuple(first.completion[: first.given])
            assert prefix in self.states[group.question], "a continuation starts from a stored state"
            self.count("retrospective/groups")
            self.count("retrospective/tokens_given", first.given)
            self.count("retrospective/converted", any(group.right))
            self.count("retrospective/groups_with_gradient", max(group.totals) > min(group.totals))
            self.count("retrospective/rows_correct", sum(group.right))
            if all(group.right) or (value == "monte_carlo" and not any(group.right)):
                stored[group.question].remove(prefix)
        for group in fresh:
            if mean(group.right) >= retire:
                self.count("retrospective/states_retired", len(stored.pop(group.question, [])))
            elif s.get("source", "own") != "own":
                solution = self.trainer.train_dataset[self.rows[group.question]].get("solution")
                self.count("retrospective/questions_without_solution", not solution)
        if value == "value_head":
            self.count("retrospective/steps_gate_closed", self.auc < s.get("gate_auc", 0.6))
            self.auc = self.lines[self.number].get("retrospective/value_auc", self.auc)
        after = self.trainer.state_log.after[self.number]
        for question, found in after.items():
            new = [prefix for prefix in found if prefix not in stored.get(question, [])]
            self.count("retrospective/states_collected", len(new))
            lost = [p for p in stored.get(question, []) if p not in found]
            full = len(found) == s.get("per_question", 4) or sum(map(len, after.values())) == s.get("max_states")
            assert not lost or full, "a state went without a reason"
            failures = [row for g in fresh if g.question == question for row in g.rows if not row.correct]
            for prefix in new if s.get("source", "own") == "own" else ():
                sources = [row for row in failures if tuple(row.completion[: len(prefix)]) == prefix]
                assert sources, "a state is the start of a wrong answer of this batch"
                assert any(len(prefix) <= s.get("max_fraction", 0.7) * len(row.completion) for row in sources)
                assert "\\boxed" not in self.trainer.processing_class.decode(list(prefix))
        gone = [question for question, found in stored.items() if found and not after.get(question)]
        assert not gone or sum(map(len, after.values())) == s.get("max_states")
        assert self.lines[self.number]["retrospective/states"] == sum(map(len, after.values()))
        self.states = after

    @property
    def rows(self):
        """question -> row of the data set."""
        return {str(row["question_id"]): number for number, row in enumerate(self.trainer.train_dataset)}

    def logged(self, groups, fresh, mixes):
        """What the trainer logs of every batch with any component on."""
        line = self.lines[self.number]
        alike = [len(set(group.right)) == 1 for group in groups]
        expected = {
            "groups/homogeneous": np.mean(alike),
            "groups/dead": np.mean([a and mix is None for a, mix in zip(alike, mixes, strict=True)]),
        }
        if fresh:
            first = [group for group in self.rounds[0] if group.kind == "fresh"]  # before any is sampled again
            expected["fresh/correct"] = np.mean([right for group in first for right in group.right])
        for key, value in expected.items():
            assert math.isclose(line[key], value, abs_tol=1e-6), key

    def check_evidence(self):
        """The run's evidence is what was counted, key by key."""
        evidence = self.trainer.evidence
        assert self.ages[0] <= evidence.get("replay/age_steps", 0.0) <= self.ages[1]
        for key in sorted({*evidence, *self.counts} - {"replay/age_steps"}):
            assert math.isclose(evidence.get(key, 0.0), self.counts[key], rel_tol=1e-5, abs_tol=1e-5), key
        for key, total in evidence.items():
            assert math.isclose(sum(line.get(key) or 0.0 for line in self.lines), total, abs_tol=1e-5), key
