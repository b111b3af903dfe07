"""A stand-in for vLLM on a CPU: its package as far as TRL and r3bench import it, and its program `vllm serve`.

`install` writes both into a folder; with it on PYTHONPATH and its `bin` on PATH, TRL's own client talks TRL's own
protocol to a server around a transformers model. Weights travel over a socket in place of NCCL, in the same order of
events: the request that announces them stays open until they have arrived.
"""

import os
import sys
from pathlib import Path

FILES = {
    "vllm/__init__.py": '''
"""Stand-in; answers depend on the seed alone."""
import json, os, time
__version__ = "0.30.0"

class SamplingParams:
    def __init__(self, **values):
        self.__dict__.update(values)

class RequestOutput:
    pass

class _Config:
    max_model_len = 512
    dtype = "torch.bfloat16"

class _Scheduler:
    max_num_batched_tokens = 1500
    max_num_seqs = 4

class _All:
    scheduler_config = _Scheduler

class _Engine:
    """An answer takes as many steps as it has tokens; the first one asked for STANDIN_FIRST more."""
    model_config, vllm_config = _Config, _All

    def __init__(self, tensor_parallel_size):
        self.tensor_parallel_size, self.running, self.first = tensor_parallel_size, {}, None

    def add_request(self, request_id, prompt, params):
        ids = prompt["prompt_token_ids"]
        extra = int(os.environ.get("STANDIN_FIRST", "0")) if self.first is None else 0
        self.first = self.first or request_id
        with open(os.environ["STANDIN_LOG"], "a") as log:
            log.write(json.dumps({
                "pid": os.getpid(), "devices": os.environ.get("CUDA_VISIBLE_DEVICES"), "seed": params.seed,
                "tensor_parallel": self.tensor_parallel_size, "prompt": ids, "rank": os.environ.get("RANK"),
                "first_runs": self.first in self.running, "under_way": len(self.running),
                "parameters": {k: v for k, v in vars(params).items() if k != "output_kind"}}) + chr(10))
        self.running[request_id] = [len(ids), params, params.seed % 5 + 1 + extra]
        assert sum(length for length, *_ in self.running.values()) <= _Scheduler.max_num_batched_tokens

    def step(self):
        time.sleep(float(os.environ.get("STANDIN_SLOW", "0")))
        found = []
        for request_id, request in list(self.running.items())[:_Scheduler.max_num_seqs]:
            request[2] -= 1
            if request[2] == 0:
                found.append(self.answer(request_id, self.running.pop(request_id)[1]))
        return found

    def answer(self, request_id, p):
        output, answer = RequestOutput(), RequestOutput()
        answer.text, answer.token_ids = "so " + chr(92) + "boxed{" + str(p.seed % 10) + "}", [1] * (p.seed % 5 + 1)
        answer.finish_reason = "length" if p.seed % 5 == 0 else "stop"
        output.request_id, output.finished, output.outputs = request_id, True, [answer]
        return output

class LLM:
    def __init__(self, model, *, seed, enable_prefix_caching, tensor_parallel_size=1, max_model_len=None):
        print("INFO: the engine talks on stdout")
        if os.environ.get("STANDIN_FAIL"):
            raise ValueError(os.environ["STANDIN_FAIL"])
        if os.environ.get("STANDIN_CRASH"):  # in the engine's own process
            print("(EngineCore) ERROR ValueError: " + os.environ["STANDIN_CRASH"])
            raise RuntimeError("Engine core initialization failed. See root cause above.")
        if os.environ.get("STANDIN_ENGINE") and (pid := os.fork()):  # a process of its own, as an engine's
            with open(os.environ["STANDIN_ENGINE"], "w") as file:
                file.write(str(pid))
        elif os.environ.get("STANDIN_ENGINE"):
            time.sleep(600)
            os._exit(0)
        self.model, self.llm_engine = model, _Engine(tensor_parallel_size)

    def get_tokenizer(self):
        from transformers import AutoTokenizer
        return AutoTokenizer.from_pretrained(self.model)
''',
    "vllm/sampling_params.py": """
class StructuredOutputsParams:
    pass

class RequestOutputKind:
    FINAL_ONLY = 2
""",
    "vllm/utils/__init__.py": "",
    "vllm/utils/network_utils.py": "def get_ip():\n    return '127.0.0.1'\n",
    "vllm/distributed/__init__.py": "",
    "vllm/distributed/weight_transfer/__init__.py": "",
    "vllm/distributed/weight_transfer/nccl_common.py": '''
import socket

class Group:
    store = None

class Communicator:
    """Rank 0 of the rendezvous: the trainer listens, the server comes."""
    def __init__(self, address, port):
        with socket.create_server((address, port)) as listener:
            self.socket, _ = listener.accept()
        self.group = Group()
        self.group.socket = self.socket

def trainer_init(init_info):
    return Communicator(init_info["master_address"], init_info["master_port"])
''',
    "vllm/distributed/weight_transfer/packed_tensor.py": """
import struct
from safetensors.torch import save

def packed_nccl_broadcast_producer(iterator, group, src, post_iter_func):
    assert src == 0
    tensors = {}
    for item in iterator:
        tensors[item[0]] = post_iter_func(item).detach().cpu().contiguous().clone()
    content = save(tensors)
    group.socket.sendall(struct.pack(">Q", len(content)) + content)
""",
    "vllm-0.30.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0\n",
    "vllm-0.30.0.dist-info/top_level.txt": "vllm\n",
    "vllm-0.30.0.dist-info/RECORD": "vllm/__init__.py,,\n",
    "sitecustomize.py": '''
"""TRL's client insists on CUDA for the weights; the stand-in has none."""
import importlib.util, sys

NAME = "trl.generation.vllm_client"

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def exec_module(module):
            run(module)
            original = module.VLLMClient.init_communicator
            module.VLLMClient.init_communicator = lambda self, device=0: original(self, device="cuda")
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
''',
}


def install(folder: Path) -> dict[str, str]:
    """Write the stand-in into `folder`; returns the environment variables that put it in vLLM's place."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    program = folder / "bin" / "vllm"
    program.parent.mkdir(exist_ok=True)
    server = Path(__file__).with_name("standin_server.py")
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {server} "$@"\n')
    program.chmod(0o755)
    paths = {"PYTHONPATH": folder, "PATH": program.parent}
    return {
        **{key: f"{path}{os.pathsep}{os.environ.get(key, '')}".rstrip(os.pathsep) for key, path in paths.items()},
        "STANDIN_LOG": str(folder / "requests.jsonl"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
