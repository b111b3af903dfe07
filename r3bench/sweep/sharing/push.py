"""A run's model to the Hugging Face hub, when asked for: private unless told otherwise, with its card."""

from typing import Any

from r3bench.config.load import parse_recipe
from r3bench.errors import ConfigError, R3BenchError, StateError
from r3bench.files import read_json
from r3bench.records import RunPaths, read_record
from r3bench.sweep.sharing.card import write_card


def push_run(paths: RunPaths, repo: str, *, public: bool = False) -> str:
    """Upload the model of a finished run, adapters and card included, as one commit; returns the address.

    Args:
        paths: the run.
        repo: 'owner/name' of a model repository, made if it isn't there.
        public: for everyone to see; a repository that is already public is refused without it.

    Raises:
        ConfigError: no token, offline, or a name that can't be one.
        StateError: the run isn't finished, or has no weights.
        R3BenchError: the hub said no, or can't be reached.
    """
    if not paths.record.is_file():
        raise StateError(f"{paths.root}: has no run.json, expected a finished run")
    if not paths.model.is_dir():
        raise StateError(
            f"{paths.root}: has no model: diverged, its weights were not kept, or an archive left them out "
            "(r3bench export --models takes them along)"
        )
    record = read_record(paths)
    api = _hub(repo)
    write_card(parse_recipe(read_json(paths.config), str(paths.config)), record, paths)
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        api.create_repo(repo, private=not public, exist_ok=True)
        if not public and not api.model_info(repo).private:
            raise ConfigError(f"'{repo}' is there and public; --public pushes to it, another name makes a private one")
        api.upload_folder(
            repo_id=repo,
            folder_path=paths.model,
            commit_message=f"{record.run_id}, code at {record.commit or 'an unknown commit'}",
        )
    except HfHubHTTPError as error:
        said = error.server_message or str(error).partition("\n")[0]
        raise R3BenchError(f"'{repo}': the hub refused: {said}") from error
    except (HTTPError, OSError) as error:
        raise R3BenchError(f"'{repo}': the hub can't be reached: {str(error).partition(chr(10))[0]}") from error
    return f"{api.endpoint}/{repo}"


def _hub(repo: str) -> Any:
    """The hub's client, once it is sure that it can be used for `repo`."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"'{repo}': not a repository's name: {str(error).partition(chr(10))[0]}") from error
    if repo.count("/") != 1:
        raise ConfigError(f"'{repo}': expected owner/name")
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it")
    if get_token() is None:
        raise ConfigError("no token for the hub: log in with `hf auth login`, or set HF_TOKEN to one that may write")
    return HfApi()
