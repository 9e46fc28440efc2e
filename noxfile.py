"""Sessions of the workspace: `uv run nox -l` lists them, `uv run nox -s tests-llm` runs one.

Each package's tests run in a virtual environment that holds only what that package declares, so an import that
breaks the order of packages fails there and not at a user's.
"""

from __future__ import annotations

import pathlib
import shutil
import tomllib

import nox

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

ROOT = pathlib.Path(__file__).parent
PYTHON = "3.12"
MEMBERS = {path.parent.name: tomllib.loads(path.read_text()) for path in sorted(ROOT.glob("packages/*/pyproject.toml"))}
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Images that forbid bytecode make each process compile torch anew; an empty value lifts that.
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "", "HF_HUB_OFFLINE": "1", "UV_PYTHON_DOWNLOADS": "never"}


def sync(session: nox.Session, package: str, *arguments: str) -> None:
    """Make the session's environment hold exactly what `package` and its `test` group resolve to."""
    session.run_install(
        "uv", "sync", "--package", package, "--group", "test", *arguments,
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location},
        silent=True,
    )  # fmt: skip


def siblings(package: str) -> list[str]:
    """The workspace members that `package` needs, itself last."""
    names: list[str] = []
    for requirement in MEMBERS[package]["project"].get("dependencies", []):
        member = next((name for name in MEMBERS if requirement.startswith(name)), None)
        if member:
            names += [name for name in siblings(member) if name not in names]
    return [*names, package]


def tests_of(package: str) -> None:
    """Define the session `tests-<short name>`."""

    @nox.session(name=f"tests-{package.removeprefix('loong-')}", python=PYTHON)
    def tests(session: nox.Session) -> None:
        sync(session, package)
        session.run("pytest", f"packages/{package}/tests", *session.posargs, env=ENVIRONMENT)

    tests.__doc__ = f"Tests of {package}, in an environment with nothing else."


for _package in MEMBERS:
    tests_of(_package)


@nox.session(python=PYTHON, default=False)
def layouts(session: nox.Session) -> None:
    """The whole matrix of layouts against one rank (the tests of loong-llm run a part of it), and its table."""
    sync(session, "loong-llm")
    session.run("pytest", "packages/loong-llm/tests/layouts", "--layouts", "all", *session.posargs, env=ENVIRONMENT)


@nox.session(name="layouts-dit", python=PYTHON, default=False)
def layouts_dit(session: nox.Session) -> None:
    """Diffusion transformers under every layout of the fsdp engine against one rank (the tests run a part of it)."""
    sync(session, "loong-dit")
    session.run("pytest", "packages/loong-dit/tests/layouts", "--layouts", "all", *session.posargs, env=ENVIRONMENT)


@nox.session(name="layouts-vla", python=PYTHON, default=False)
def layouts_vla(session: nox.Session) -> None:
    """Robot policies divided among ranks against one rank (the tests of loong-vla run it too)."""
    sync(session, "loong-vla")
    session.run("pytest", "packages/loong-vla/tests/layouts", *session.posargs, env=ENVIRONMENT)


@nox.session(name="oracle-vla", python=PYTHON, default=False)
def oracle_vla(session: nox.Session) -> None:
    """What lerobot's own policies compute, in its own environment, is what the tests of loong-vla expect of ours.

    lerobot also runs a GR00T policy that is written here and, with a quickstart's folder (`-- runs/vla`), the policy in
    it; its actions have to be ours.
    """
    session.install("lerobot[dataset,pi,groot]==0.6.1")
    folder = pathlib.Path(session.create_tmp()) / "golden"
    folder.mkdir(exist_ok=True)
    scripts = "packages/loong-vla/tests/oracle"
    for golden in ("write_pi_golden", "write_groot_golden", "write_groot_policy_golden"):
        session.run("python", f"{scripts}/{golden}.py", str(folder), env=ENVIRONMENT)
    for keys in ("lerobot_keys", "lerobot_groot_keys"):
        session.run("python", f"{scripts}/write_{keys}.py", str(folder / f"{keys}.json"), env=ENVIRONMENT)
    session.run("python", f"{scripts}/compare_golden.py", str(folder), env=ENVIRONMENT)
    observed, project = folder / "observed.safetensors", ("uv", "run", "--no-sync", "python")
    written = pathlib.Path(session.create_tmp()) / "groot"
    shutil.rmtree(written, ignore_errors=True)
    session.run(*project, f"{scripts}/write_our_groot.py", str(written), str(observed), external=True)
    session.run("python", f"{scripts}/lerobot_opens_groot.py", str(written), str(observed), env=ENVIRONMENT)
    if session.posargs:
        run = pathlib.Path(session.posargs[0])
        session.run(*project, f"{scripts}/write_our_actions.py", str(run), str(observed), external=True)
        session.run(
            "python", f"{scripts}/lerobot_opens.py", str(run / "pretrained_model"), str(observed), env=ENVIRONMENT
        )


@nox.session(python=PYTHON, default=False)
def faults(session: nox.Session) -> None:
    """Ranks killed at each stage of a save, or left hanging; with `-- --random 20` at random moments of a save too."""
    sync(session, "loong-llm")
    core = "packages/loong-core/tests"
    files = [f"{core}/train/test_{name}.py" for name in ("kill_while_saving", "hang_watch", "faults_of_one_rank")]
    session.run("pytest", *files, f"{core}/checkpoint/test_resume.py", env=ENVIRONMENT)
    session.run("pytest", "-s", "packages/loong-llm/tests/faults", *session.posargs, env=ENVIRONMENT)


@nox.session(name="layouts-vlm", python=PYTHON, default=False)
def layouts_vlm(session: nox.Session) -> None:
    """Every layout of vision-language models against one rank (their package's tests run a part of it)."""
    sync(session, "loong-vlm")
    session.run("pytest", "packages/loong-vlm/tests/layouts", "--layouts", "all", *session.posargs, env=ENVIRONMENT)


@nox.session(python=PYTHON)
def lint(session: nox.Session) -> None:
    """Formatting, lint rules, and the repository's own checks."""
    session.install(*_pinned("ruff"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("python", "-m", "tools.checks", env=ENVIRONMENT)


@nox.session(python=PYTHON)
def types(session: nox.Session) -> None:
    """Type checks of every package."""
    session.run_install(
        "uv", "sync", "--all-packages", "--inexact", env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location},
        silent=True,
    )  # fmt: skip
    session.run("pyright", "--pythonpath", f"{session.bin}/python", env=ENVIRONMENT)


@nox.session(python=PYTHON)
def docs(session: nox.Session) -> None:
    """Every command and link of README and docs/ is tried."""
    session.run_install(
        "uv", "sync", "--all-packages", env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location}, silent=True
    )
    session.run("python", "-m", "tools.run_files", "--check", env=ENVIRONMENT)
    session.run("python", "-m", "tools.docs", *session.posargs, env=ENVIRONMENT)


@nox.session(python=PYTHON)
def build(session: nox.Session) -> None:
    """Wheels of every package, installed together into an environment of their own and looked at."""
    out = pathlib.Path(session.create_tmp()) / "dist"
    session.run("uv", "build", "-q", "--all-packages", "--wheel", "--clear", "--out-dir", str(out), external=True)
    session.install(*(str(wheel) for wheel in out.glob("*.whl")))
    session.run("python", "-m", "tools.wheels", str(out), env=ENVIRONMENT)


@nox.session(python=PYTHON, default=False)
def newest(session: nox.Session) -> None:
    """Every package's tests on the newest torch and transformers that resolve (not part of the default run)."""
    paths = [argument for package in MEMBERS for argument in ("-e", f"packages/{package}")]
    day = WORKSPACE["tool"]["uv"]["exclude-newer"]
    session.run_install(
        "uv", "pip", "install", "--no-config", "--exclude-newer", day, *paths, "torch>=2.12", "pytest>=9", "accelerate",
    )  # fmt: skip
    for package in MEMBERS:
        session.run("pytest", f"packages/{package}/tests", *session.posargs, env=ENVIRONMENT)


def _pinned(*names: str) -> list[str]:
    """Requirements of development tools as the root's `dev` group declares them."""
    group = WORKSPACE["dependency-groups"]["dev"]
    return [requirement for requirement in group if requirement.split(">")[0].split("[")[0] in names]
