"""Replay and ranking by length over rewards that may be missing, row by row in plain Python.

Written from the definitions, without NumPy or the library: a row is judged by the verdict functions that gave a number;
only judged rows are ranked, stored, mixed and counted.
"""

import math


def mean(values):
    return sum(values) / len(values)


def deviation(values):
    """Divisor n - 1; None for fewer than two."""
    if len(values) < 2:
        return None
    centre = mean(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))


def total(rewards, weights):
    """Weighted sum of the numbers in a row; None if there are none."""
    given = [w * r for w, r in zip(weights, rewards, strict=True) if r is not None]
    return sum(given) if given else None


class Reference:
    """A run of `replay` (warmup 0, newest rows first, weight none) and `ranking` (scope failed, order length,
    stable ties, only answers to the bare question), group by group."""

    def __init__(self, *, verdicts, weights, threshold, rows, most, keep, scale, ranked, replace=False):
        self.verdicts, self.weights, self.threshold = verdicts, weights, threshold  # columns, (F,) weights
        self.rows, self.most, self.keep = rows, most, keep  # k, R_max, stored answers per question
        self.scale, self.ranked = scale, ranked  # scale_rewards, whether ranking is on
        self.replace = replace  # whether as many rows of the group give way
        self.stored = {}  # question -> [(right, total of the task's columns, completion)], oldest first
        self.counts = {}

    def count(self, key, amount=1):
        self.counts[key] = self.counts.get(key, 0) + amount

    def judge(self, rewards):
        """True, False, or None where nobody spoke."""
        given = [rewards[column] for column in self.verdicts if rewards[column] is not None]
        return all(value >= self.threshold for value in given) if given else None

    def step(self, groups, gone=None):
        """Advantages of a batch. `groups`: (question, rewards G x F, completions G, lengths G); of each group the
        advantages of its rows, and [(completion, advantage)] of the rows that join it. `gone`: per group the places
        that gave way, which are drawn at random."""
        judged = [[self.judge(row) for row in rewards] for _, rewards, _, _ in groups]
        tasks = [[total(row, self.weights) for row in rewards] for _, rewards, _, _ in groups]
        totals = [list(values) for values in tasks]
        for number, (_, _, _, lengths) in enumerate(groups):
            wrong = [place for place, verdict in enumerate(judged[number]) if verdict is False]
            if self.ranked and wrong and True not in judged[number]:
                order = sorted(wrong, key=lambda place: lengths[place])  # shortest first, ties by row
                for rank, place in enumerate(order):
                    reward = self.most * (1 - rank / (len(order) - 1)) if len(order) > 1 else 0.0
                    totals[number][place] = (totals[number][place] or 0.0) + reward
                self.count("ranking/groups")
                self.count("ranking/rows", len(wrong))
        batch = [value for values in totals for value in values if value is not None]
        result = []
        for number, (question, _, _, _) in enumerate(groups):
            own = self.stock(totals[number], batch)
            joined = self.mix(question, judged[number], totals[number], batch)
            left = gone[number] if gone else []
            assert len(left) == (len(joined) if self.replace else 0)
            if joined:
                assert all(judged[number][place] is not None for place in left)
                members = [
                    t
                    for place, (t, j) in enumerate(zip(totals[number], judged[number], strict=True))
                    if j is not None and place not in left
                ]
                members += [t for _, t, _ in joined]
                divisor, eps = self.divisor(members, batch + [t for _, t, _ in joined])
                centre = mean(members)
                own = [
                    (t - centre) / (divisor + eps) if j is not None else a
                    for t, j, a in zip(totals[number], judged[number], own, strict=True)
                ]
                joined = [(c, (t - centre) / (divisor + eps)) for _, t, c in joined]
            result.append((own, joined))
        for number, (question, _, completions, _) in enumerate(groups):
            for verdict, task, completion in zip(judged[number], tasks[number], completions, strict=True):
                if verdict is not None:
                    self.stored.setdefault(question, []).append((verdict, task, completion))
        return result

    def divisor(self, group, batch):
        if self.scale == "none":
            return 1.0, 0.0
        found = deviation(group if self.scale == "group" else batch)
        return (0.0 if found is None else found), 1e-4

    def stock(self, totals, batch):
        """TRL's advantages: 0 where every function abstained."""
        given = [value for value in totals if value is not None]
        if not given:
            return [0.0] * len(totals)
        found = 0.0 if self.scale == "none" else deviation(given if self.scale == "group" else batch)
        if found is None:  # TRL's deviation of one value is NaN, and NaN becomes 0
            return [0.0] * len(totals)
        scale = 1.0 if self.scale == "none" else found + 1e-4
        return [0.0 if value is None else (value - mean(given)) / scale for value in totals]

    def mix(self, question, judged, totals, batch):
        verdicts = [verdict for verdict in judged if verdict is not None]
        if not verdicts or len(set(verdicts)) > 1:
            return []
        right = verdicts[0]
        self.count("replay/groups_all_right" if right else "replay/groups_all_wrong")
        fits = [row for row in self.stored.get(question, []) if row[0] != right]
        if not fits:
            self.count("replay/groups_no_history")
            return []
        own = [t for t, j in zip(totals, judged, strict=True) if j is not None]
        slack = 1e-6 * (1 + max(abs(t) for t in own))
        fair = [row for row in fits if (row[1] <= min(own) + slack if right else row[1] >= max(own) - slack)]
        if len(fair) < len(fits):
            self.count("replay/rows_outranked", len(fits) - len(fair))
        if not fair:
            self.count("replay/groups_outranked")
            return []
        chosen = fair[::-1][: min(self.rows, len(own) - 1) if self.replace else self.rows]  # at least one row stays
        if not chosen:
            return []
        self.count("replay/groups_mixed")
        self.count("replay/rows", len(chosen))
        return chosen
