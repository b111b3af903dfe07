"""The components through `R3Trainer.train()`: which rows, rewards, advantages and masks reach the loss."""

from unittest import mock

import numpy as np
import pytest
import torch
from component_tools import NAN  # noqa: F401  (puts tests/reference on the path)
from reference_components import by_context, mixed, serr
from train_tools import batch_rows, groups_of, grpo, question_of, text_of, token_entropies, train
from trainer_tools import losses
from transformers import AutoModelForCausalLM

from r3bench.errors import ConfigError
from r3bench.training.step import trl_adapter

EOS = 2


def all_wrong(completion_ids, **_):
    return [0.0] * len(completion_ids)


def truncated(row):
    return row["completion"][-1] not in (0, EOS)


# ---------------------------------------------------------------------------------------------------------- ranking


@pytest.mark.parametrize(
    ("settings", "changes"),
    [({}, {}), ({"unanchored_weight": 0.1}, {}), ({"scope": "failed", "ties": "stable"}, {"scale_rewards": "none"})],
)
def test_ranking_rewards_are_the_reference_on_the_trained_rows(tiny_model, tmp_path, settings, changes):
    trainer = train(
        tiny_model, tmp_path, {"ranking": {"peak_fraction": 0.25, **settings}}, all_wrong, steps=3, **changes
    )
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    spread = ranked = 0
    for record in trainer.records:
        model.load_state_dict(record["weights"])
        for group in groups_of(record):
            chosen = [i for i, row in enumerate(group) if truncated(row) or settings.get("scope") == "failed"]
            entropies = [token_entropies(model, group[i]["prompt"], group[i]["completion"]).tolist() for i in chosen]
            rewards = np.zeros(4)
            rewards[chosen] = serr(entropies, 0.25, 0.5, settings.get("ties", "average"))
            want = grpo(rewards) if not changes else rewards - rewards.mean()
            want = want * settings.get("unanchored_weight", 1.0)
            np.testing.assert_allclose([row["advantages"][0] for row in group], want, atol=1e-4)
            spread += np.ptp(rewards) > 0
            ranked += len(chosen)
    assert trainer.evidence["ranking/rows"] == ranked > 0
    assert trainer.evidence["ranking/groups_with_spread"] == spread > 0
    assert any("rewards/ranking/mean" in line for line in trainer.state.log_history)


@pytest.mark.parametrize("scored", [False, True], ids=["scored by the loss", "scored by TRL"])
@pytest.mark.parametrize("which", ["one", "sampling"])
def test_entropies_are_the_policys_own_whatever_the_sampling_temperature(tiny_model, tmp_path, scored, which):
    """Ranked by T = 1 or the sampling temperature; what the history stores stays at the sampling temperature."""
    from r3bench.components.ranking import Ranking

    seen, score = [], Ranking.score

    def noting(self, groups, entropies):
        seen.append({row: values.copy() for row, values in entropies.items()})
        return score(self, groups, entropies)

    settings = {"ranking": {"scope": "failed", "entropy_temperature": which}, "rescue": True}
    with mock.patch.object(Ranking, "score", noting):
        halves = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "steps": 4} if scored else {"steps": 2}
        trainer = train(tiny_model, tmp_path, settings, all_wrong, temperature=0.6, rows=2, **halves)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    stored = {q: list(trainer.history.open([q]).summaries(q)) for q in ("q0", "q1")}
    assert len(trainer.records) == len(seen) == 2
    for number, (record, entropies) in enumerate(zip(trainer.records, seen, strict=True)):
        model.load_state_dict(record["weights"])
        assert sorted(entropies) == list(range(8))
        for group in groups_of(record):
            summaries = stored[question_of(trainer, group[0])][4 * number : 4 * number + 4]
            for row, summary in zip(group, summaries, strict=True):
                cold = token_entropies(model, row["prompt"], row["completion"], 0.6)
                own = token_entropies(model, row["prompt"], row["completion"], 1.0)
                assert np.abs(cold - own).max() > 0.05, "the two can't be told apart"
                np.testing.assert_allclose(entropies[row["number"]], own if which == "one" else cold, atol=2e-5)
                assert summary.entropy_mean == pytest.approx(cold.mean(), abs=2e-5)
    with pytest.raises(KeyError), trl_adapter.head_temperature(trainer, 1.0):
        raise KeyError
    found = trl_adapter.score_tokens(trainer, [row["prompt"]], [row["completion"]])[1][0]
    model.load_state_dict(trainer.model.state_dict())
    cold = token_entropies(model, row["prompt"], row["completion"], 0.6)
    np.testing.assert_allclose(found, cold, atol=2e-5)  # the head is as it was, also after a failure


def test_noise_of_the_forward_pass_ranks_no_rows_that_begin_alike(tiny_model, tmp_path):
    """Entropies as a bfloat16 forward gives them: rows of one context differ. One token is the peak here."""
    from r3bench.components.ranking import Ranking

    rng, seen, scoring, score = np.random.default_rng(0), [], trl_adapter.score_tokens, Ranking.score

    def noisy(*args, **kwargs):
        logprobs, entropies = scoring(*args, **kwargs)
        return logprobs, [row + torch.from_numpy(rng.normal(0, 0.02, len(row))).float() for row in entropies]

    def noting(self, step, entropies):
        rewards = score(self, step, entropies)
        seen.append(
            [[(entropies[r].tolist(), rewards[r]) for r in group.rows if r in rewards] for group in step.groups]
        )
        return rewards

    with mock.patch.object(trl_adapter, "score_tokens", noisy), mock.patch.object(Ranking, "score", noting):
        trainer = train(
            tiny_model, tmp_path, {"ranking": {"peak_fraction": 0.1, "scope": "failed"}}, all_wrong, steps=4,
        )  # fmt: skip
    moved = 0
    for record, batch in zip(trainer.records, seen, strict=True):
        for rows, found in zip(groups_of(record), batch, strict=True):
            raw = [entropies for entropies, _ in found]
            settled = by_context(raw, [row["completion"] for row in rows])
            want = serr(settled, 0.1, 0.5, "average")
            np.testing.assert_allclose([reward for _, reward in found], want, atol=1e-6)
            moved += want != serr(raw, 0.1, 0.5, "average")
    assert moved > 0, "the noise would have decided nothing anyway"


def test_another_temperature_reaches_the_head_below_low_rank_adapters(tiny_model, tmp_path):
    from peft import LoraConfig
    from trainer_tools import arguments, questions

    from r3bench import R3Trainer
    from r3bench.training.step.heads import second_temperature

    trainer = R3Trainer(
        model=tiny_model, reward_funcs=all_wrong, train_dataset=questions(2), args=arguments(tmp_path, temperature=0.6),
        peft_config=LoraConfig(r=4, init_lora_weights=False),
    )  # fmt: skip
    prompt, completion = [5, 6, 7], [8, 9, 10, 11]
    for temperature in (1.0, None, 2.0):
        found = trl_adapter.score_tokens(trainer, [prompt], [completion], temperature=temperature)[1][0]
        want = token_entropies(trainer.model, prompt, completion, temperature or 0.6)
        np.testing.assert_allclose(found, want, atol=2e-5)
    ids = torch.tensor([[*prompt, *completion]])
    with torch.no_grad(), second_temperature(trainer, 1.0):
        found = trainer._get_per_token_logps_and_entropies(
            trainer.model, ids, torch.ones_like(ids), 4, compute_entropy=True
        )[1]
    for number, temperature in enumerate((0.6, 1.0)):
        want = token_entropies(trainer.model, prompt, completion, temperature)
        np.testing.assert_allclose(found[0, :, number], want, atol=2e-5)


def test_at_temperature_one_the_ranking_pays_for_no_forward_of_its_own(tiny_model, tmp_path):
    """Where TRL scores its samples, ranking takes those entropies; the two settings then train the same."""
    runs, calls, scoring = [], [], trl_adapter.score_tokens

    def counting(*args, **kwargs):
        calls.append(kwargs)
        return scoring(*args, **kwargs)

    with mock.patch.object(trl_adapter, "score_tokens", counting):
        for number, settings in enumerate(({}, {"entropy_temperature": "sampling"})):
            components = {"ranking": settings, "rescue": True}
            trainer = train(tiny_model, tmp_path / str(number), components, all_wrong, steps=4, num_iterations=2)
            runs.append(losses(trainer))
    assert trainer.evidence["ranking/groups_with_spread"] > 0
    assert runs[0] == runs[1] and calls == []


# ------------------------------------------------------------------------------------------------------- reflection


@pytest.mark.parametrize("placement", ["append", "replace"])
def test_reflection_trains_on_a_prompt_with_an_own_earlier_wrong_answer(tiny_model, tmp_path, placement):
    seen_by_reward = []

    def reward(prompts, completion_ids, **_):
        seen_by_reward.append([prompt[-1]["content"] for prompt in prompts])
        return [0.0] * len(prompts)

    settings = {"template": "short", "context": "full", "placement": placement, "max_share": 1.0}
    trainer = train(tiny_model, tmp_path, {"reflection": settings}, reward)
    earlier, reflected = {}, 0
    for number, record in enumerate(trainer.records):
        groups = groups_of(record)
        extra = 2 if placement == "append" and number >= 3 else 0
        assert len(groups) == 2 + extra, "whole groups are added, and none in the first epoch"
        for group in groups:
            prompt = text_of(trainer, group[0]["prompt"])
            question = question_of(trainer, group[0])
            assert all(row["prompt"] == group[0]["prompt"] for row in group)
            if "Wrong:" not in prompt:
                assert placement == "append" or number < 3
                earlier.setdefault(question, set()).update(text_of(trainer, row["completion"]) for row in group)
                continue
            reflected += 1
            shown = prompt.split("\nWrong: ")[1].split("<|im_end|>\n")[0]
            clean = {t.replace("<|im_end|>", "").replace("<|pad|>", "").strip() for t in earlier[question]}
            answers = [t.replace("<|", "< |").replace("</", "< /") for t in clean]
            # A random model's bytes are read again as more tokens than they were: then the end of the answer is shown.
            assert number >= 3 and any(answer.endswith(shown.lstrip("\ufffd")) for answer in answers)
        assert not any("Wrong:" in text for text in seen_by_reward[number]), "rewards see the data set's prompt"
    assert trainer.evidence["reflection/groups"] == trainer.evidence["reflection/groups_planned"] == reflected == 6


# ---------------------------------------------------------------------------------------------------- retrospective


def wrong_unless_continued(completion_ids, **_):
    return [float(sum(ids) % 5 == 0) for ids in completion_ids]


RETRO = {"cuts": "grid", "spacing": 2, "quantile": 0.0, "share": 0.5, "retire": 0.6}


@pytest.mark.parametrize("value", ["monte_carlo", "random", "value_head"])
def test_continuations_start_with_a_stored_failure_and_only_the_rest_is_trained(tiny_model, tmp_path, value):
    settings = {**RETRO, "value": value, "gate_auc": 0.0}
    trainer = train(tiny_model, tmp_path, {"retrospective": settings}, wrong_unless_continued, steps=8)
    failures, continued = {}, 0
    for record in trainer.records:
        new = {}
        for group in groups_of(record):
            question = question_of(trainer, group[0])
            given = [row["mask"].count(0) for row in group]
            assert len(set(given)) == 1
            if given[0]:
                continued += 1
                for row in group:
                    assert row["mask"] == [0] * given[0] + [1] * (len(row["completion"]) - given[0])
                    assert row["completion"][: given[0]] == group[0]["completion"][: given[0]]
                prefix = group[0]["completion"][: given[0]]
                assert any(f[: given[0]] == prefix for f in failures[question]), "not from a failure of this question"
            else:
                new.setdefault(question, []).extend(
                    row["completion"] for row in group if sum(row["completion"]) % 5 != 0
                )
        for question, found in new.items():
            failures.setdefault(question, []).extend(found)
    assert trainer.evidence["retrospective/groups"] == continued > 0
    tokens = sum(row["mask"].count(0) for record in trainer.records for row in batch_rows(record))
    assert trainer.evidence["retrospective/tokens_given"] * 4 == tokens


def test_given_tokens_are_trained_on_request(tiny_model, tmp_path):
    settings = {**RETRO, "value": "random", "prefix_loss": True}
    trainer = train(tiny_model, tmp_path, {"retrospective": settings}, wrong_unless_continued, steps=6)
    assert trainer.evidence["retrospective/tokens_given"] > 0
    assert not any(0 in row["mask"] for record in trainer.records for row in batch_rows(record))


def test_the_critic_sees_the_policys_hidden_states_at_the_cuts(tiny_model, tmp_path):
    from r3bench.components.retrospective import Retrospective

    seen = []
    cut = Retrospective._cut_rows

    def spying(self, groups):
        rows = cut(self, groups)
        if all(group.hidden for group, _, _ in rows):  # not in `probe`, which asks for them
            seen.append([(g.question, p, cuts, g.completion_ids[p], g.hidden[p]) for g, p, cuts in rows])
        return rows

    with mock.patch.object(Retrospective, "_cut_rows", spying):
        trainer = train(
            tiny_model, tmp_path, {"retrospective": {**RETRO, "share": 0.01}}, wrong_unless_continued, steps=3
        )
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    compared = 0
    for record, rows in zip(trainer.records, seen, strict=True):
        model.load_state_dict(record["weights"])
        prompts = {question_of(trainer, group[0]): group[0]["prompt"] for group in groups_of(record)}
        for question, _, cuts, completion, hidden in rows:
            ids = torch.tensor([[*prompts[question], *completion.tolist()]])
            with torch.no_grad():
                states = model.model(input_ids=ids).last_hidden_state[0]
            want = states[[len(prompts[question]) + cut - 1 for cut in cuts]]
            np.testing.assert_allclose(hidden, want.numpy(), atol=1e-4)
            compared += len(cuts)
    assert compared > 0


# ------------------------------------------------------------------------------------------------------------ rivals


def test_dynamic_sampling_trains_on_groups_with_contrast_or_not_at_all(tiny_model, tmp_path):
    alive = {"q1", "q4", "q7", "q9"}

    def reward(completion_ids, question_id, **_):
        return [float(q in alive and i % 2 == 0) for i, q in enumerate(question_id)]

    trainer = train(tiny_model, tmp_path, {"dynamic_sampling": {"max_rounds": 3}}, reward, rows=12, steps=4)
    trained = dead = 0
    for record in trainer.records:
        for group in groups_of(record):
            advantages = [row["advantages"][0] for row in group]
            if question_of(trainer, group[0]) in alive:
                np.testing.assert_allclose(advantages, grpo([1, 0, 1, 0]), atol=1e-5)
                trained += 1
            else:
                assert advantages == [0.0] * 4
                dead += 1
    assert trained > 4, "a batch of two random groups has 0.67 live ones on average"
    assert trainer.evidence["dynamic_sampling/groups_dropped"] == dead


def turning(completion_ids, question_id, trainer_state, **_):
    """In the first epoch one of four answers is right; later none is."""
    first = trainer_state.epoch is None or trainer_state.epoch < 1
    return [float(first and i % 4 == 0) for i in range(len(question_id))]


def test_rescue_swaps_in_a_right_answer_of_the_same_question(tiny_model, tmp_path):
    trainer = train(tiny_model, tmp_path, {"rescue": True}, turning)
    solved = {}
    for number, record in enumerate(trainer.records):
        rows = batch_rows(record)
        old = [row for row in rows if row["number"] < 0]
        assert len(old) == (0 if number < 3 else 2)
        for row in rows:
            if number < 3 and row["number"] % 4 == 0:
                solved[question_of(trainer, row)] = row["completion"]
        for row in old:
            assert row["completion"] == solved[question_of(trainer, row)]
            own, other = mixed([0.0] * 3, [1.0], 1.0, 1e-4, "mixed", "group_std")
            np.testing.assert_allclose(row["advantages"], other[0], atol=1e-5)
            peers = [r for r in rows if r["number"] >= 0 and r["prompt"] == row["prompt"]]
            np.testing.assert_allclose([r["advantages"][0] for r in peers], own, atol=1e-5)
    assert trainer.evidence["rescue/rows"] == 6


def test_a_group_that_replay_has_mixed_is_not_rescued_and_no_evidence_of_it(tiny_model, tmp_path):
    components = {"replay": {"weight": "none"}, "rescue": True, "repo": {"window": 4, "min_stored": 4}}
    trainer = train(tiny_model, tmp_path, components, turning)
    old = sum(row["number"] < 0 for record in trainer.records for row in batch_rows(record))
    assert old == trainer.evidence["replay/rows"] == 6
    for name in ("rescue", "repo"):
        assert trainer.evidence[f"{name}/groups_taken"] == 6 and not trainer.evidence.get(f"{name}/rows")
    acted = {component.name: component.acted(trainer.evidence) for component in trainer.components}
    assert acted == {"replay": True, "repo": False, "rescue": False}


def test_ranking_knows_the_history_of_groups_that_were_sampled_again(tiny_model, tmp_path):
    """Every question is solved once in the first epoch, so none is ranked later, whoever put it into the batch."""
    components = {"dynamic_sampling": True, "ranking": {"when": "no_history", "scope": "failed"}}
    trainer = train(tiny_model, tmp_path, components, turning)
    assert trainer.evidence["dynamic_sampling/groups_dead"] > 0
    assert trainer.evidence.get("ranking/groups", 0) == 0


def test_the_ranking_reward_must_stay_below_a_weighted_right_answer(tmp_path):
    from trainer_tools import arguments, questions

    from r3bench import R3Trainer
    from r3bench.config.load import parse_recipe

    components = {"ranking": {"max_reward": 0.5}}
    message = r"ranking\.max_reward: got 0\.5, expected below 0\.4"
    with pytest.raises(ConfigError, match=message):
        R3Trainer(
            model="never loaded", reward_funcs=all_wrong, train_dataset=questions(2),
            args=arguments(tmp_path, components=components, reward_weights=[0.4]),
        )  # fmt: skip
    with pytest.raises(ConfigError, match=message):
        parse_recipe({"components": components, "trainer": {"reward_weights": [0.4]}}, "recipe")
    parse_recipe({"components": components, "trainer": {"reward_weights": [0.6]}}, "recipe")


def test_repo_joins_every_stored_answer_with_its_own_statistics(tiny_model, tmp_path):
    settings = {"rows": 4, "window": 4, "min_stored": 4, "weight": "none", "coefficient": 0.5}
    trainer = train(tiny_model, tmp_path, {"repo": settings}, turning)
    for number, record in enumerate(trainer.records):
        old = [row for row in batch_rows(record) if row["number"] < 0]
        assert len(old) == (0 if number < 3 else 8)
        for question in {question_of(trainer, row) for row in old}:
            got = sorted(row["advantages"][0] for row in old if question_of(trainer, row) == question)
            np.testing.assert_allclose(got, sorted(0.5 * grpo([1, 0, 0, 0])), atol=1e-5)
    assert trainer.evidence["repo/rows"] == 24


def test_exgrpo_visits_half_solved_questions_with_their_surest_right_answer(tiny_model, tmp_path):
    def reward(completion_ids, question_id, **_):
        return [float(q != "q0" and (q == "q1" or i % 2 == 0)) for i, q in enumerate(question_id)]

    settings = {"share": 0.5, "start": 0.0, "weight": "none"}
    trainer = train(tiny_model, tmp_path, {"exgrpo": settings}, reward, steps=8, scale_rewards="none")
    old = [(n, row) for n, record in enumerate(trainer.records) for row in batch_rows(record) if row["number"] < 0]
    assert len(old) == trainer.evidence["exgrpo/rows"] > 2
    assert {question_of(trainer, row) for _, row in old} <= {"q2", "q3", "q4", "q5"}
    for number, row in old:
        peers = [r for r in batch_rows(trainer.records[number]) if r["number"] >= 0 and r["prompt"] == row["prompt"]]
        kept = [float(r["number"] % 2 == 0) for r in peers]
        assert len(kept) == 3
        own, other = mixed(kept, [1.0], 1.0, 0.0, "mixed", "group_std", 1.0)
        np.testing.assert_allclose(row["advantages"], other[0], atol=1e-5)
        np.testing.assert_allclose([r["advantages"][0] for r in peers], own, atol=1e-5)
