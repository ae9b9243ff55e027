"""What all tests share: one thread, interpreted Triton where there is no GPU, a toy model."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# Before torch starts its pool of threads, and for the processes that tests start: one thread is
# faster at toy size, and the same sums come out on every machine.
os.environ["OMP_NUM_THREADS"] = "1"

# Tokenised text is kept in the user's home otherwise.
os.environ["STATELAB_CACHE"] = tempfile.mkdtemp(prefix="statelab-tests-")

import pytest
import torch

from statelab.__main__ import main
from statelab.config import Config
from statelab.loading import load_config
from statelab.model.build import build_model
from statelab.model.decoder import Decoder
from statelab_mlflow.store import connect

torch.set_num_threads(1)
if not torch.cuda.is_available():
    # Triton reads it when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the text that tests have tokenised."""
    shutil.rmtree(os.environ["STATELAB_CACHE"], ignore_errors=True)


TOY = {
    "write": "gla",
    "read": "plain",
    "model.d_model": "16",
    "model.num_layers": "2",
    "model.num_heads": "2",
    "model.mlp_hidden": "24",
    "data.name": "mqar",
    "data.vocab_size": "32",
    "data.seq_len": "16",
    "data.num_pairs": "[2,3]",
    "data.num_train": "20",
    "data.num_val": "8",
    "data.batch_size": "4",
    "trainer.max_steps": "4",
    "trainer.val_every": "2",
    "trainer.accelerator": "cpu",
    "tracking.figures": "false",
}


@pytest.fixture(scope="session")
def toy() -> Callable[..., list[str]]:
    """The `key=value` arguments of a run that takes a second, changed by further ones."""

    def arguments(*overrides: str) -> list[str]:
        given = dict(each.split("=", 1) for each in overrides)
        values = TOY | given
        if values["write"] == "s4d":
            values.setdefault("write.num_modes", "4")
        if values["data.name"] != "mqar":
            own = ("data.vocab_size", "data.num_pairs", "data.num_train", "data.num_val")
            values = {key: value for key, value in values.items() if key not in own}
        return [f"{key}={value}" for key, value in values.items()]

    return arguments


@pytest.fixture(scope="session")
def toy_config(toy: Callable[..., list[str]]) -> Callable[..., Config]:
    """The configuration of such a run."""
    return lambda *overrides: load_config(None, toy(*overrides))


@pytest.fixture(scope="session")
def stirred() -> Callable[[Config], Decoder]:
    """Build a model in float64 and move it off its start, where some parameters are 0."""

    def build(config: Config) -> Decoder:
        model = build_model(config).double()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
                parameter.add_(0.1 * noise)
        return model

    return build


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, made the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def statelab(away: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder; returns exit status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out, err

    return run


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables; making them takes seconds, a copy nothing."""
    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    connect(f"sqlite:///{file}")
    return file


@pytest.fixture
def run_dir(tmp_path: Path, empty_database: Path) -> Path:
    """An empty folder of runs with a tracking store."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(empty_database, folder)
    return folder


class Postgres:
    """A server in a folder of its own, which runs as nobody special."""

    def __init__(self, folder: Path) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        initdb = found[-1] if found else shutil.which("initdb")
        assert initdb, "these tests need PostgreSQL: apt-get install -y postgresql"
        self.programs, self.folder = Path(initdb).parent, folder
        self.user: list[str] = []
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")
            who = ("--reuid=postgres", "--regid=postgres", "--clear-groups")
            self.user = ["setpriv", *who, "env", f"HOME={folder}"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = ("-U", "lab", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
        self._call("initdb", "-D", f"{folder}/data", *options)
        self.start()

    def start(self) -> None:
        """Return when it answers."""
        where = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        more = "-c fsync=off -c max_connections=200"
        control = ("pg_ctl", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log")
        self._call(*control, "-w", "-o", f"{where} {more}", "start")

    def stop(self) -> None:
        """Cut all connections."""
        self._call("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "stop")

    def make(self, database: str) -> str:
        """Make a database; gives its URL."""
        self._call("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "lab", database)
        return f"postgresql+psycopg://lab@127.0.0.1:{self.port}/{database}"

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self.user, self.programs / program, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """PostgreSQL, for as long as a test lasts."""
    # The socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = Postgres(folder)
    yield server
    server.stop()
    shutil.rmtree(folder)
