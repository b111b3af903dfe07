"""No secret in a printed line, a log or a record: what is found in a text, and what is left alone."""

import json
import os
import random
import string
import subprocess
import sys
import time

import pytest

from r3bench.config.load import parse_recipe
from r3bench.errors import ConfigError
from r3bench.secrets import MASK, in_address, masked, masked_values, said_of, telling

HEX = "0123456789abcdef0123456789abcdef01234567"
TEXTS = {  # {} stands for the secret
    "hf_{}": "AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
    "ghp_{}": "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "github_pat_{}": "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789",
    "glpat-{}": "abcdefghij0123456789",
    "sk-{}": "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL",
    "sk-ant-api03-{}": "abcdefghij-klmnopqrstuvwxyz_0123456789",
    "sk-proj-{}": "abcdefghijklmnop0123456789_-ABCDEF",
    "xoxb-{}": "123456789012-abcdefghij",
    "+key_id: AKIA{}": "ABCDEFGHIJKLMNOP",
    "AIza{}": "SyA0123456789abcdefghijklmnopqrstuv",
    "wandb login {}": HEX,
    'wandb.login(key="{}")': HEX,
    "WANDB_API_KEY={}": HEX,
    "machine api.wandb.ai\n+  login user\n+  password {}": HEX,
    "aws_secret_access_key = {}": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "-----BEGIN PRIVATE KEY-----\n+{}\n+-----END PRIVATE KEY-----": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n+BKcw",
    "-----BEGIN OPENSSH PRIVATE KEY-----\n{}": "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU",  # cut short
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----": "MIIEpAIBAAKCAQEA",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n{}\n-----END PGP PRIVATE KEY BLOCK-----": "lQdGBF8",
    "eyJ{}": "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "password={}": "hunter2",
    "password = '{}'": "correct horse battery",
    'password: str = "{}"': "correct horse",
    'db_password: str | None = "{}"': "correct-horse",
    "token: {}": "abcdefghij",
    "token: '{}'": "abc def",
    '"password": "{}"': "s3cret!",
    "{{'api_key': '{}'}}": "0123456789",
    "DB_PASSWD={}": "p/w:d@x",
    "export HF_TOKEN={}": "whatever-it-is",
    "client_secret := {}": "abc123",
    "Authorization: Bearer {}": "abc.def-ghi_jkl",
    "curl -H 'Authorization: Basic {}'": "dXNlcjpwYXNz",
    "--password {}": "hunter2",
    "--api-key {}": "hunter2",
    "--token={}": "hunter2",
    "host=db user=me password={} dbname=x": "hunter2",
    "postgresql://me:{}@db/r3": "s3cret",
    "postgresql+psycopg2://me:{}@db:5432/r3?sslmode=require": "p@ss/w?rd#:1",
    "mysql://me:{}@db/r3": "p%40ss%2Fw",
    "https://{}@github.com/me/x.git": "0123456789abcdef",
    "git+https://me:{}@github.com/x/y@main": "hunter2",
    "postgresql://db/r3?user=me&password={}&sslmode=require": "hunter2",
    "https://x/y?sig={}&a=b": "abcdef",
    "https://x/y?access_token={}": "abcdef",
    "trainer.hub_token: got '{}', expected null": "myOwnToken",
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("around", ["{}", "+    {}", "before {} after", "x = 1\n-{}\n y = 2\n"])
def test_secrets_are_masked(text, around):
    secret = TEXTS[text]
    found = masked(around.format(text.format(secret)))
    assert MASK in found
    assert secret.split("\n")[0] not in found
    assert masked(found) == found


HARMLESS = [
    "max_tokens = 512",
    "tokens: 100",
    'pad_token = "<|endoftext|>"',
    "eos_token: </s>",
    "tokenizer.pad_token = tokenizer.eos_token",
    "token = tokenizer.decode(ids[0])",
    "def f(token: str, tokens: int = 5) -> None:",
    "password: str | None = None",
    "token = None",
    "key = value",
    "index 3e0b5e5..a792bd4 100644",
    "revision: 0123456789abcdef0123456789abcdef01234567",
    '"commit": "0123456789abcdef0123456789abcdef01234567"',
    "https://github.com/huggingface/trl/pull/1#issue",
    "git+https://github.com/x/y@main",
    "ssh://git@github.com/x/y",
    "sqlite:////home/me/a:b@c/optuna.db",
    "postgresql://me@db/r3",
    "http://localhost:8000/v1",
    "trainer.hub_token: never put a token in a recipe; log in with the hub's own tool",
    "token_ids = [1, 2, 3]",
    'password authentication failed for user "me"',
    "pass@8 = 0.5, maj@8: 0.3",
    "bypass: yes",
    "task-embedding-and-risk-averse-things",
    "PWD=/home/me/x",
    "shf_learning_rate_of_the_model_0123456789",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_secret_is_left_alone(text):
    assert masked(text) == text


def test_values_of_telling_variables_are_masked_wherever_they_stand(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", HEX)
    monkeypatch.setenv("MY_SERVICE_TOKEN", "a plain word")
    assert masked(f"commit {HEX} with a plain word") == f"commit {MASK} with {MASK}"
    assert telling("PGPASSWORD") and telling("hf_token") and not telling("TOKENIZERS_PARALLELISM")
    assert masked(f"in {__file__}") == f"in {__file__}"  # PWD is telling by its name only


def test_json_ready_values():
    value = {"env_vars": {"HF_TOKEN": "x", "A": "1"}, "setup": ["export TOKEN=abcdefgh"], "n": 1, "pad_token": "<pad>"}
    assert masked_values(value) == {
        "env_vars": {"HF_TOKEN": MASK, "A": "1"}, "setup": [f"export TOKEN={MASK}"], "n": 1, "pad_token": "<pad>",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://me:s3cretPW@db/r3", 'connection to "db" for "me" with "s3cretPW" failed'),
        ("postgresql://me:p%40ss%20word@db/r3", "bad password p@ss word"),
        ("postgresql://me:p@ss/wo?rd@db/r3", 'could not translate host name "ss/wo" to address'),
        ("postgresql://db/r3?user=me&password=a+b%2Fcde", "invalid dsn: password='a b/cde' or a+b/cde"),
        ("postgresql://me:ab@db/r3", "no entry for ab in the file"),
    ],
)
def test_a_library_that_repeats_a_password_is_masked(url, said):
    secrets = in_address(url)
    error = RuntimeError("An exception is raised during the commit.")
    error.__cause__ = ValueError(f"{said}\nsecond line")
    found = said_of(url, error)
    assert not any(secret in found for secret in secrets if len(secret) > 1)
    assert "commit" not in found and "\n" not in found
    assert MASK in found or found == "ValueError"


def test_a_large_diff_takes_no_time():
    draw = random.Random(0)
    letters = string.ascii_letters + string.digits + "_-.:=@/\"' "
    texts = ["".join(draw.choices(letters, k=200_000)), json.dumps(["x" * 1000] * 200)]
    texts += [part * (200_000 // len(part)) for part in ("a", "token", "://a:", "_-", "password=", '"', "?a", "eyJa.")]
    for text in texts:
        start = time.process_time()
        masked(text)
        assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"trainer": {"vllm_server_base_url": "http://me:hunter2@gpu1:8000"}}, "trainer.vllm_server_base_url"),
        ({"model": {"name": "https://ABCDEF0123456789@example.org/m"}}, "model.name"),
        ({"trainer": {"report_to": ["wandb", "hf_" + "a1" * 12]}}, "trainer.report_to"),
    ],
)
def test_a_recipe_with_a_secret_is_refused_without_repeating_it(values, where):
    with pytest.raises(ConfigError, match=f"r.yaml: {where}: holds what looks like a password or token") as caught:
        parse_recipe(values, "r.yaml")
    assert "hunter2" not in str(caught.value) and "ABCDEF" not in str(caught.value) and "hf_" not in str(caught.value)


def test_the_recorded_diff_and_failures_are_masked(monkeypatch):
    from r3bench.sweep.attempts import classify
    from r3bench.training import environment

    secret = "hf_" + "Ab1" * 12
    environment.source.cache_clear()
    monkeypatch.setattr(environment, "git", lambda *asked: f"+x = '{secret}'\n" if asked[0] == "diff" else None)
    root = str(environment.Path(environment.r3bench.__file__).parents[1])
    monkeypatch.setattr(
        environment, "git", lambda *asked: root if "--show-toplevel" in asked else f"+password = {secret}\n+y = 2\n"
    )
    assert environment.source()["diff"] == f"+password = {MASK}\n+y = 2\n"
    environment.source.cache_clear()
    try:
        raise RuntimeError(f"no access with {secret}, nor to postgresql://me:hunter2@db/x")
    except RuntimeError as error:
        failure = classify(error)
    assert secret not in failure.message + failure.detail and "hunter2" not in failure.message + failure.detail
    assert "RuntimeError: no access with" in failure.message and "Traceback" in failure.detail


def test_error_lines_and_tracebacks_are_masked(tmp_path):
    """Whatever raises them: the command line's own handler, and the last resort for a bug."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom r3bench import cli, errors\n"
        "def broken(*a, **k): raise getattr(errors, sys.argv[2], RuntimeError)('at mysql://me:hunter2@db/x')\n"
        "cli._Group.resolve_command = broken\nsys.argv[1:2] = ['env']\ncli.main()\n"
    )
    for kind in ("StateError", "RuntimeError"):
        done = subprocess.run(
            [sys.executable, str(script), "x", kind], capture_output=True, text=True, env=os.environ, check=False
        )
        assert done.returncode and "mysql://me:***@db/x" in done.stderr, done.stderr
        assert "hunter2" not in done.stderr.replace("at mysql://me:hunter2@db/x')", "") and not done.stdout


def test_options_of_a_scheduler_are_masked_in_the_study(tmp_path):
    from r3bench.sweep.grid import parse_grid
    from r3bench.sweep.opening import open_study

    options = {"setup": ["export HF_TOKEN=whatever"], "time": 60}
    grid = parse_grid(
        {"name": "g", "recipe": "quickstart", "factors": {"replay": ["off", "on"]}, "seeds": [0],
         "executor": {"kind": "slurm", "options": options}},
        "g.yaml",
    )  # fmt: skip
    study = open_study(grid, tmp_path)
    study.write()
    study.write()  # the same again
    recorded = json.loads(study.file.read_text())["grid"]["executor"]["options"]
    assert recorded == {"setup": [f"export HF_TOKEN={MASK}"], "time": 60} and study.grid.executor.options == options
