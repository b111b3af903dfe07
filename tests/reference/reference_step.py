"""One step of R3 and its rivals in plain Python, from the papers' text: rewards, who is mixed with what, advantages.

Drawn at random stays drawn: where a method draws, the reference says what may be drawn and how many.
"""

from dataclasses import dataclass, field

from reference_components import by_context, deviation, dominated, mean, mixed, peak_and_global, ramp, serr


@dataclass
class Answer:
    """A sampled answer."""

    question: str
    prompt: list
    completion: list
    given: int  # leading tokens that were handed over
    kind: str  # fresh, reflection or continuation
    task: float
    correct: bool
    truncated: bool
    logprobs: list  # of its tokens, when and as it was sampled
    entropies: list  # of the distributions its tokens were drawn from
    step: int = 0
    epoch: int = 0
    ranking: float = 0.0  # what the ranking's column held
    ranked: list = field(default_factory=list)  # entropies the ranking goes by: the policy's own, or those above


@dataclass
class Group:
    """Answers to one prompt."""

    rows: list
    revisited: bool = False  # put into the batch by exgrpo
    totals: list = field(default_factory=list)  # task reward plus ranking reward

    @property
    def kind(self):
        return self.rows[0].kind

    @property
    def question(self):
        return self.rows[0].question

    @property
    def right(self):
        return [row.correct for row in self.rows]


@dataclass
class Mix:
    """What a group is mixed with."""

    pool: list  # stored answers that may be drawn
    count: int  # how many are
    swapped: bool  # they take the place of rows of the group
    rule: str  # off-policy weight
    exact: list | None = None  # the very answers, where the method leaves no choice
    factor: float = 1.0  # on their advantages
    options: dict = field(default_factory=dict)  # of `mixed`
    clip: tuple = (0.0, 2.0)
    kl: bool = True  # a KL term covers the historic rows


def rank(groups, settings, store):
    """Set `totals` of every group; returns the groups that were ranked with the places and rewards."""
    ranked = []
    for group in groups:
        group.totals = [row.task for row in group.rows]
        if settings is None:
            continue
        if group.kind not in settings.get("into_provenance", ["fresh"]):
            continue
        scope = settings.get("scope", "truncated")
        if scope != "truncated_anywhere" and any(group.right):
            continue
        if settings.get("when") == "no_history" and any(
            old.correct and old.kind == "fresh" for old in store.get(group.question, [])
        ):
            continue
        places = [i for i, row in enumerate(group.rows) if not row.correct and (scope == "failed" or row.truncated)]
        if not places:
            continue
        rows, r_max = [group.rows[i] for i in places], settings.get("max_reward", 0.5)
        ties, order = settings.get("ties", "average"), settings.get("order", "domination")
        settled = by_context([row.ranked for row in rows], [row.completion for row in rows])
        own = [entropies[row.given :] for entropies, row in zip(settled, rows, strict=True)]
        p = settings.get("peak_fraction", 0.2)
        if order in ("random", "shuffled") or ties == "random":
            rewards = [row.ranking for row in rows]  # a drawn order: any order of the ramp, see `drawn_ramp`
        elif order == "length":
            rewards = ramp([-len(row.completion) for row in rows], r_max, ties)
        elif order == "reversed":
            rewards = ramp([-s for s in dominated([peak_and_global(e, p) for e in own])], r_max, ties)
        else:
            rewards = serr(own, p, r_max, ties)
        for place, reward in zip(places, rewards, strict=True):
            group.totals[place] += reward
        ranked.append((group, places, rewards))
    return ranked


def stored(store, question, **wanted):
    return [a for a in store.get(question, []) if all(getattr(a, k) == v for k, v in wanted.items())]


def plan_mix(group, on, store, step, epoch):
    """The first component, in order of precedence, that mixes the group, as a `Mix`; None if none does."""
    q = group.question
    if "exgrpo" in on and group.revisited:
        pool = stored(store, q, correct=True, kind="fresh")
        if pool:
            surest = min(mean(a.entropies) for a in pool)
            exact = [a for a in pool if mean(a.entropies) == surest]
            return Mix(pool, 1, True, on["exgrpo"].get("weight", "shaped"), exact[:1], kl=False)
    if on.get("reflection", {}).get("gradient") == "reattach" and group.kind == "fresh" and not any(group.right):
        pool = stored(store, q, correct=True, kind="reflection")
        if pool:
            rule = on["reflection"].get("weight", "shaped")
            return Mix(pool, 1, True, rule, options={"std": 1.0, "lam": 0.0, "mode": "mixed"}, kl=False)
    if "replay" in on and group.kind in on["replay"].get("into_provenance", ["fresh"]):
        s = on["replay"]
        if len(set(group.right)) == 1 and epoch + 1e-6 >= s.get("warmup", 1.0):
            if group.right[0] and s.get("labels") == "positives":
                return None
            pool = [
                a
                for a in stored(store, q, correct=not group.right[0])
                if a.kind in s.get("from_provenance", ["fresh"])
                and (a.correct or not a.truncated or s.get("truncated_negatives"))
                and step - a.step <= (s.get("max_age") or 10**9)
            ]
            if pool:
                count = min(s.get("rows", 1), len(pool))
                options = {
                    "alpha": s.get("alpha", 1.0), "lam": s.get("eps", 1e-4), "mode": s.get("normalisation", "mixed"),
                    "alpha_on": s.get("alpha_on", "group_std"), "population": s.get("deviation") == "population",
                }  # fmt: skip
                clip = (s.get("ratio_min", 0.0), s.get("ratio_max", 2.0))
                exact = pool[-count:] if s.get("pick") == "recent" else None
                swapped = s.get("mode", "append") == "replace"
                return Mix(pool, count, swapped, s.get("weight", "decoupled"), exact, options=options, clip=clip)
    if "repo" in on and group.kind == "fresh":
        s = on["repo"]
        pool = stored(store, q, kind="fresh")[-s.get("window", 16) :]
        if len(pool) >= s.get("min_stored", 16):
            count = min(s.get("rows", 8), len(pool))
            exact = pool[-count:] if s.get("pick", "recent") == "recent" else None
            options = {"mode": s.get("normalisation", "split")}
            rule, factor = s.get("weight", "ppo"), s.get("coefficient", 1.0)
            return Mix(pool, count, False, rule, exact, factor, options, kl=False)
    if "rescue" in on and group.kind == "fresh" and not any(group.right):
        pool = [a for a in stored(store, q, correct=True, kind="fresh") if a.epoch < int(epoch + 1e-6)]
        if pool:
            s = on["rescue"]
            return Mix(pool, 1, True, s.get("weight", "none"), clip=(0.0, s.get("ratio_max", 2.0)))
    return None


def plain_advantages(group, groups, scale):
    """GRPO's advantages of a group by its totals."""
    centred = [total - mean(group.totals) for total in group.totals]
    if scale == "none":
        return centred
    base = group.totals if scale == "group" else [total for g in groups for total in g.totals]
    return [c / (deviation(base) + 1e-4) for c in centred]


def mixed_advantages(group, groups, gone, old, mix, scale):
    """(place -> advantage of a row that stayed, advantages of the historic rows)."""
    kept = [i for i in range(len(group.rows)) if i not in gone]
    options = {"alpha": 1.0, "lam": 1e-4, "mode": "mixed", "alpha_on": "group_std", "std": None, **mix.options}
    if scale == "none":
        options |= {"std": 1.0, "lam": 0.0}
    elif scale == "batch" and options["std"] is None:
        options["std"] = deviation([total for g in groups for total in g.totals] + [a.task for a in old])
    own, other = mixed(
        [group.totals[i] for i in kept], [a.task for a in old], options["alpha"], options["lam"], options["mode"],
        options["alpha_on"], options["std"], options.get("population", False),
    )  # fmt: skip
    return dict(zip(kept, own, strict=True)), [mix.factor * a for a in other]


def weight_of(group, mix, on):
    """Factor on all advantages of a group's own rows."""
    factor = 1.0
    ranked = group.totals != [row.task for row in group.rows]
    gained = [total - row.task for total, row in zip(group.totals, group.rows, strict=True)]
    if "ranking" in on and mix is None and not any(group.right) and ranked and max(gained) > min(gained):
        factor *= on["ranking"].get("unanchored_weight", 1.0)
    dead = mix is None and group.kind == "fresh" and len(set(group.right)) == 1
    if "dynamic_sampling" in on and dead and not max(gained) > min(gained):
        factor = 0.0
    return factor
