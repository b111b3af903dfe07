"""The components' algorithms in plain Python, written from the equations, independent of the implementation."""

import itertools
import math


def mean(values):
    return sum(values) / len(values)


def deviation(values, population=False):
    """Standard deviation with divisor n - 1 (n: `population`), 0 for a single value."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - (0 if population else 1)))


def mixed(fresh, replayed, alpha, lam, normalisation, alpha_on, std=None, population=False):
    """R3 Eq. 3 and its options; lists of advantages of both parts."""

    def of(part, base, off_policy):
        out = []
        for r in part:
            s = deviation(base, population) if std is None else std
            if normalisation == "fresh" and s == 0:
                s = 1.0
            a = (r - mean(base)) / (alpha * s + lam if alpha_on == "group_std" else s + lam)
            out.append(a / alpha if off_policy and alpha_on == "replayed_rows" else a)
        return out

    everything = list(fresh) + list(replayed)
    base = {"mixed": (everything, everything), "split": (fresh, replayed), "fresh": (fresh, fresh)}[normalisation]
    return of(fresh, base[0], False), of(replayed, base[1], True)


def peak_and_global(entropies, p):
    """E_peak over the max(1, floor(p L)) largest token entropies, and E_glob."""
    k = max(1, int(p * len(entropies) + 1e-9))
    top = sorted(entropies, reverse=True)[:k]
    return sum(top) / k, sum(entropies) / len(entropies)


def by_context(entropies, completions):
    """Every entropy replaced by the mean over the rows that have the same tokens before it."""
    contexts = {}
    for row, tokens in zip(entropies, completions, strict=True):
        for t, value in enumerate(row):
            contexts.setdefault(tuple(tokens[:t]), []).append(value)
    return [
        [mean(contexts[tuple(tokens[:t])]) for t in range(len(row))]
        for row, tokens in zip(entropies, completions, strict=True)
    ]


def dominated(figures, resolution=1e-4):
    """S_i: number of j with E_peak(i) > E_peak(j) and E_glob(i) < E_glob(j); closer than `resolution` is equal."""
    scores = []
    for i, (peak, whole) in enumerate(figures):
        others = [pair for j, pair in enumerate(figures) if j != i]
        scores.append(sum(1 for p, g in others if peak - p > resolution and g - whole > resolution))
    return scores


def ramp(scores, r_max, ties):
    """R_max (1 - k / (N - 1)) by rank k from 0; `stable`: equal scores in row order, `average`: their mean reward."""
    n = len(scores)
    if n < 2:
        return [0.0] * n
    rewards = [0.0] * n
    for k, i in enumerate(sorted(range(n), key=lambda i: (-scores[i], i))):
        rewards[i] = r_max * (1 - k / (n - 1))
    if ties == "average":
        rewards = [mean([rewards[j] for j in range(n) if scores[j] == scores[i]]) for i in range(n)]
    return rewards


def serr(entropies, p, r_max, ties):
    return ramp(dominated([peak_and_global(list(row), p) for row in entropies]), r_max, ties)


def auc(scores, labels):
    """Share of (right, wrong) pairs in which the right one scores higher, ties half."""
    right = [s for s, y in zip(scores, labels, strict=True) if y]
    wrong = [s for s, y in zip(scores, labels, strict=True) if not y]
    won = sum((a > b) + 0.5 * (a == b) for a in right for b in wrong)
    return won / (len(right) * len(wrong))


def quantile(values, q):
    """Linear interpolation between order statistics."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def paragraph_ends(text_pieces):
    """Prefix lengths after which the text so far has one more blank line than before."""
    ends, text = [], ""
    for t, piece in enumerate(text_pieces):
        before = len([i for i in range(len(text)) if text.startswith("\n\n", i)])
        text += piece
        after = len([i for i in range(len(text)) if text.startswith("\n\n", i)])
        if after > before:
            ends.append(t + 1)
    return ends


def best_variance(rewards, k):
    """The largest variance of any k of the rewards, by trying all."""
    return max(sum((r - mean(c)) ** 2 for r in c) / k for c in itertools.combinations(rewards, k))


def critic(batches, rate, passes=8, decay=1e-4):
    """Logistic regression on running-standardised features by Adam, one number at a time. Returns a value function."""
    size = len(batches[0][0][0])
    w, m, v = [0.0] * size, [0.0] * size, [0.0] * size
    b, mb, vb = 0.0, 0.0, 0.0
    centre, square = [0.0] * size, [1.0] * size
    t = 0

    def inputs(row):
        out = []
        for j in range(size):
            spread = math.sqrt(max(square[j] - centre[j] ** 2, 1e-8))
            out.append(max(-10.0, min(10.0, (row[j] - centre[j]) / spread)) / math.sqrt(size))
        return out

    def value(row):
        z = sum(a * c for a, c in zip(inputs(row), w, strict=True)) + b
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, z))))

    for rows, returns in batches:
        keep = 0.95 if t else 0.0
        for j in range(size):
            centre[j] = keep * centre[j] + (1 - keep) * mean([r[j] for r in rows])
            square[j] = keep * square[j] + (1 - keep) * mean([r[j] ** 2 for r in rows])
        for _ in range(passes):
            t += 1
            errors = [value(r) - y for r, y in zip(rows, returns, strict=True)]
            xs = [inputs(r) for r in rows]
            for j in range(size):
                g = sum(e * x[j] for e, x in zip(errors, xs, strict=True)) / len(rows) + decay * w[j]
                m[j], v[j] = 0.9 * m[j] + 0.1 * g, 0.999 * v[j] + 0.001 * g * g
                w[j] -= rate * (m[j] / (1 - 0.9**t)) / (math.sqrt(v[j] / (1 - 0.999**t)) + 1e-8)
            g = mean(errors)
            mb, vb = 0.9 * mb + 0.1 * g, 0.999 * vb + 0.001 * g * g
            b -= rate * (mb / (1 - 0.9**t)) / (math.sqrt(vb / (1 - 0.999**t)) + 1e-8)
    return value
