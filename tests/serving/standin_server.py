"""`vllm serve` on a CPU, as far as TRL 1.16 and OpenAI clients ask: a transformers model behind vLLM's endpoints.

Every request goes to $STANDIN_LOG as a JSON line, with a hash of the weights it met. STANDIN_FAIL: end with this
message. STANDIN_TAKEN: file; while it exists, remove it and end as if the port were taken. STANDIN_SLOW: seconds before
the port is opened. STANDIN_FORK: leave a second process behind that outlives a mere SIGTERM to the first.
"""

import argparse
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--weight-transfer-config", type=json.loads)
    parser.add_argument("--logprobs-mode")
    parser.add_argument("--max-logprobs", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--generation-config", choices=["vllm"], required=True)  # nothing that isn't asked for
    parser.add_argument("--model-impl")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--revision")
    parser.add_argument("--dtype")
    return parser.parse_args()


class Model:
    def __init__(self, folder):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.folder, self.torch, self.lock = folder, torch, threading.Lock()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.load = lambda: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.reset()

    def reset(self):
        """As just started: first weights, first random numbers."""
        self.model = self.load().eval()
        self.drawn = 0
        self.hash = self._hash()

    def _hash(self):
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:16]

    def take(self, tensors):
        known = dict(self.model.named_parameters())
        unknown = tensors.keys() - known.keys()
        assert not unknown, f"unknown tensors {sorted(unknown)}"
        with self.torch.no_grad():
            for name, tensor in tensors.items():
                known[name].copy_(tensor)
        self.hash = self._hash()

    def sample(self, ids, body, seed=None):
        """(token ids, log-probs) of one completion."""
        torch = self.torch
        if seed is None:
            seed, self.drawn = self.drawn, self.drawn + 1
        generator = torch.Generator().manual_seed(seed)
        temperature, tokens, values, cache = body["temperature"], [], [], None
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        step = torch.tensor([ids])
        with torch.no_grad():
            while len(tokens) < body["max_tokens"]:
                out = self.model(input_ids=step, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                logps = torch.log_softmax(out.logits[0, -1] / (temperature or 1.0), -1)
                token = (
                    int(logps.argmax())
                    if temperature == 0
                    else int(torch.multinomial(logps.exp(), 1, generator=generator))
                )
                tokens.append(token)
                values.append(float(logps[token]))
                if token in ends:
                    break
                step = torch.tensor([[token]])
        return tokens, values, "stop" if tokens and tokens[-1] in ends else "length"


class Late:
    """The model, once the first request asks for it: most tests of a server's life ask for none."""

    def __init__(self, folder):
        self.folder, self.found, self.lock = folder, None, threading.Lock()

    def get(self):
        with self.lock:
            self.found = self.found or Model(self.folder)
            return self.found

    @property
    def hash(self):
        return self.found.hash if self.found else "none"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, value, code=200):
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def record(self, body):
        line = {"method": self.command, "path": self.path, "body": body.decode(), "weights": MODEL.hash}
        with LOCK, open(os.environ["STANDIN_LOG"], "a") as log:
            log.write(json.dumps(line) + "\n")

    def do_GET(self):
        self.record(b"")
        path = self.path.partition("?")[0]
        if path == "/health":
            self.reply({})
        elif path == "/v1/models":
            self.reply({"data": [{"id": ARGUMENTS.model, "max_model_len": ARGUMENTS.max_model_len or 512}]})
        elif path == "/get_world_size" and DEV:
            self.reply({"world_size": ARGUMENTS.tensor_parallel_size})
        elif path == "/server_info" and DEV:
            config = {
                "model_config": {"logprobs_mode": ARGUMENTS.logprobs_mode or "raw_logprobs"},
                "weight_transfer_config": ARGUMENTS.weight_transfer_config,
            }
            self.reply({"vllm_config": config})
        else:
            self.reply({"error": "not found"}, 404)

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/standin/reset":
            self.record(raw)
        body = json.loads(raw or b"{}")
        model = MODEL.get()
        with model.lock:
            self.reply(*self.answer(body, model))

    def answer(self, body, model):
        global GROUP  # noqa: PLW0603, one trainer at a time
        if self.path == "/v1/completions":
            return self.completions(body, model)
        if self.path == "/v1/chat/completions":
            return self.chat(body, model)
        if self.path == "/standin/reset":
            model.reset()
            return ({},)
        if not DEV:
            return {"error": "not found"}, 404
        if self.path == "/init_weight_transfer_engine":
            info = body["init_info"]
            assert info["packed"] is True and info["rank_offset"] == 1
            for _ in range(200):
                try:
                    GROUP = socket.create_connection((info["master_address"], info["master_port"]))
                    break
                except OSError:
                    time.sleep(0.05)
        elif self.path == "/update_weights":
            from safetensors.torch import load

            names = body["update_info"]["names"]
            tensors = load(receive(GROUP, struct.unpack(">Q", receive(GROUP, 8))[0]))
            assert sorted(names) == sorted(tensors)
            model.take(tensors)
        elif self.path == "/reset_prefix_cache":
            return ({"success": True},)
        return ({},)

    def completions(self, body, model):
        assert body["return_token_ids"] and body["return_tokens_as_token_ids"] and body["logprobs"] == 0
        choices = []
        for ids in body["prompt"]:
            if len(ids) + body["max_tokens"] > (ARGUMENTS.max_model_len or 512):
                return {"error": {"message": f"maximum context length is {ARGUMENTS.max_model_len} tokens"}}, 400
            for _ in range(body["n"]):
                tokens, values, reason = model.sample(ids, body)
                choices.append({
                    "prompt_token_ids": ids, "token_ids": tokens, "finish_reason": reason,
                    "logprobs": {
                        "tokens": [f"token_id:{token}" for token in tokens], "token_logprobs": values,
                        "top_logprobs": [{f"token_id:{t}": v} for t, v in zip(tokens, values, strict=True)],
                    },
                })  # fmt: skip
        return ({"choices": choices},)

    def chat(self, body, model):
        text = model.tokenizer.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        context = ARGUMENTS.max_model_len or 512
        if len(ids) + body["max_tokens"] > context:
            return {"error": {"message": f"This model's maximum context length is {context} tokens."}}, 400
        tokens, _, reason = model.sample(ids, body, body["seed"])
        text = model.tokenizer.decode(tokens, skip_special_tokens=True)
        message = {"role": "assistant", "content": text}
        return (
            {
                "choices": [{"message": message, "finish_reason": reason}],
                "usage": {"completion_tokens": len(tokens)},
            },
        )


def receive(connection, count):
    content = b""
    while len(content) < count:
        part = connection.recv(count - len(content))
        assert part, "the trainer left"
        content += part
    return content


class Server(ThreadingHTTPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    ARGUMENTS, DEV, LOCK, GROUP = arguments(), os.environ.get("VLLM_SERVER_DEV_MODE") == "1", threading.Lock(), None
    devices, context = os.environ.get("CUDA_VISIBLE_DEVICES"), ARGUMENTS.max_model_len
    print(f"INFO: starting with devices {devices} and context {context}", flush=True)
    if os.environ.get("STANDIN_FORK"):
        stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", stubborn])
        Path(os.environ["STANDIN_FORK"]).write_text(f"{os.getpid()} {child.pid}")
    taken = Path(os.environ.get("STANDIN_TAKEN", "/nowhere"))
    if taken.exists():
        taken.unlink()
        sys.exit("OSError: [Errno 98] Address already in use")
    if os.environ.get("STANDIN_FAIL"):
        print("INFO: loading", flush=True)
        sys.exit(f"ValueError: {os.environ['STANDIN_FAIL']}")
    time.sleep(float(os.environ.get("STANDIN_SLOW", "0")))
    MODEL = Late(ARGUMENTS.model)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Server((ARGUMENTS.host, ARGUMENTS.port), Handler).serve_forever()
