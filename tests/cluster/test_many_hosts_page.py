"""The page on several hosts: its commands run, and what cannot be run here is at least well formed."""

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from d2lps import cluster

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/many-hosts.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
SHELL = [code for kind, code in BLOCKS if kind == "sh"]
(SLURM,) = [code for code in SHELL if "#SBATCH" in code]
(SSH,) = [code for code in SHELL if "ssh " in code]
(JOB,) = [yaml.safe_load(code) for kind, code in BLOCKS if kind == "yaml"]
SBATCH = {"nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time"}  # of what `man sbatch` lists
OPERATOR = {"MASTER_ADDR": "host0", "MASTER_PORT": "23456"}  # what Kubeflow's operator sets, as here


def option(command: list[str], name: str) -> str:
    """The value of an option, written with ``=`` or a space."""
    line = shlex.join(command)
    return re.search(rf"{name}[= ](\S+)", line)[1]


def pods() -> dict:
    return {name: spec["template"]["spec"] for name, spec in JOB["spec"]["pytorchReplicaSpecs"].items()}


def by_ssh() -> str:
    """Return the command that the loop runs on each host."""
    said = subprocess.run(["bash", "-c", f'ssh() {{ echo "$2"; }}\n{SSH}'], capture_output=True, text=True, check=True)
    first, second = said.stdout.splitlines()
    assert first == second
    return first


def by_slurm() -> str:
    """Return the command that the script runs on each host: ``srun`` starts the same there."""
    commands = "scontrol() { printf 'host0\\nhost1\\n'; }\nsrun() { printf '%q ' \"${@:3}\"; }\n"
    env = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "host[0-1]", "SLURM_CPUS_PER_TASK": "16"}
    done = subprocess.run(["bash", "-euc", commands + SLURM], env=env, capture_output=True, text=True, check=True)
    return done.stdout


def in_kubernetes() -> str:
    """Return the command that the manifest runs in each pod, with the variables that the operator sets."""
    master, worker = (pod["containers"][0]["command"] for pod in pods().values())
    assert master == worker
    return re.sub(r"\$\((\w+)\)", lambda found: OPERATOR[found[1]], shlex.join(master).replace("'", ""))


@pytest.mark.parametrize("script", SHELL)
def test_shell_scripts_have_no_syntax_error(script):
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_on_the_page_is_python():
    (code,) = [code for kind, code in BLOCKS if kind == "python"]
    ast.parse(code)


def test_directives_for_slurm():
    first, *lines = SLURM.splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert first == "#!/bin/bash" and lines[: len(directives)] == directives  # after a command they are not read
    given = dict(re.fullmatch(r"#SBATCH --([\w-]+)=(\S+)", line).groups() for line in directives)
    assert set(given) == SBATCH and given["ntasks-per-node"] == "1"  # one torchrun on each host
    assert re.fullmatch(r"\d\d:\d\d:\d\d", given["time"])
    command = shlex.split(by_slurm())
    assert given["gpus-per-node"] == option(command, "--nproc-per-node")
    assert given["nodes"] == option(command, "--nnodes") == "2"
    assert option(command, "--rdzv-endpoint") == "host0:29500" and option(command, "--rdzv-id") == "7"


def test_the_manifest_for_kubernetes():
    """As Kubeflow validates a PyTorchJob, and as Kubernetes validates pods."""
    assert (JOB["apiVersion"], JOB["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", JOB["metadata"]["name"])
    specs = JOB["spec"]["pytorchReplicaSpecs"]
    assert list(JOB["spec"]) == ["pytorchReplicaSpecs"] and list(specs) == ["Master", "Worker"]
    assert specs["Master"]["replicas"] == 1
    for spec in specs.values():
        assert set(spec) == {"replicas", "restartPolicy", "template"}
        assert spec["restartPolicy"] in {"Always", "OnFailure", "Never", "ExitCode"}
    for pod in pods().values():
        assert set(pod) == {"containers", "volumes"}
        (container,) = pod["containers"]
        assert container["name"] == "pytorch" and container["image"]
        assert set(container) == {"name", "image", "command", "env", "resources", "volumeMounts"}
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert set(mounted) == set(volumes) and mounted["shm"] == "/dev/shm"
        assert volumes["secret"]["secret"]["defaultMode"] & 0o077 == 0  # else the store refuses it
        (variable,) = container["env"]
        assert variable["name"] == "D2LPS_SECRET_FILE" and variable["value"] == f"{mounted['secret']}/key"
        assert set(re.findall(r"\$\((\w+)\)", " ".join(container["command"]))) <= set(OPERATOR)
        replicas = sum(spec["replicas"] for spec in specs.values())
        assert option(container["command"], "--nnodes") == str(replicas)
        gpus = container["resources"]["limits"]["nvidia.com/gpu"]
        assert option(container["command"], "--nproc-per-node") == str(gpus)


@pytest.fixture(scope="module")
def two():
    """Two hosts."""
    try:
        hosts = cluster.emulated(hosts=2, gpus_per_host=1, bandwidth="200 Mbit/s")
    except cluster.NoEmulation as error:
        pytest.skip(f"system: {error}")
    with hosts:
        yield hosts


@pytest.mark.parametrize("command, processes", [(by_ssh, 2), (by_slurm, 1), (in_kubernetes, 1)])
def test_its_commands_train_on_two_hosts(two, command, processes):
    line = command().replace("cd d2lps", f"cd {shlex.quote(str(ROOT))}")
    torchrun = f"{shlex.quote(sys.executable)} -m torch.distributed.run"
    line, replaced = re.subn(r"\.venv/bin/torchrun", torchrun, line)
    line, fewer = re.subn(r"(--nproc-per-node[= ])4", rf"\g<1>{processes}", line)
    assert (replaced, fewer) == (1, 1)
    ended = two.run(["sh", "-c", f"{line} --steps 6"], deadline=100)
    strategy = option(shlex.split(line), "--strategy")
    said = [line for each in ended for line in each.output.splitlines() if line.startswith(strategy)]
    assert len(said) == 2 * processes and len({line.partition(" (")[0] for line in said}) == 1  # the same weights
