"""The map of docs/design.md as a contract of import-linter.

A line of the map is a path below counterfoil/, the number of its floor, and what the room is for. A path that
ends in a slash is a room of several files. The graph holds every import, those under TYPE_CHECKING included.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import grimp
from importlinter.application import output
from importlinter.domain import fields
from importlinter.domain.contract import Contract, ContractCheck

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "counterfoil"
_BLOCK = re.compile(r"^```rooms\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"(?P<path>[\w./]+)\s+(?P<floor>\d+)\s+(?P<purpose>\S.*)")


@dataclass(frozen=True)
class Room:
    """One line of the map."""

    path: str
    floor: int
    purpose: str

    def holds(self, file: str) -> bool:
        return file.startswith(self.path) if self.path.endswith("/") else file == self.path

    @property
    def to_come(self) -> bool:
        """The line announces a room that is not built yet."""
        return self.purpose.startswith("(to come)")


def read_map(text: str) -> list[Room]:
    """Every room of the map, in its order; a line that is no room is an error."""
    block = _BLOCK.search(text)
    if block is None:
        msg = "no block ```rooms in the page"
        raise ValueError(msg)
    rooms = []
    for line in filter(str.strip, block[1].splitlines()):
        found = _LINE.fullmatch(line.strip())
        if found is None:
            msg = f"not a room: {line!r}"
            raise ValueError(msg)
        rooms.append(Room(found["path"], int(found["floor"]), found["purpose"]))
    return rooms


def room_of(file: str, rooms: list[Room]) -> Room | None:
    """The room of a file: the longest line that holds it."""
    return max((room for room in rooms if room.holds(file)), key=lambda room: len(room.path), default=None)


def files() -> list[str]:
    """Every Python file of the package, as the map writes it, with `/` between folders."""
    return sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def is_bare_package(file: str, rooms: list[Room]) -> bool:
    """An `__init__.py` without a line of its own, which holds nothing, so that it needs no floor."""
    return file.endswith("/__init__.py") and room_of(file, rooms) is None


@dataclass(frozen=True)
class House:
    """The map, and who may know whom beyond the floors."""

    rooms: list[Room]
    adapters_know: tuple[str, ...]
    doors_know: tuple[str, ...]
    names_adapters: tuple[str, ...]

    def faults(self, imports: dict[str, set[str]]) -> list[str]:
        """Sentences on what is wrong with these imports, file to files; none where all is well."""
        found = [self._homeless(file, imports[file]) for file in sorted(imports) if self._unknown(file)]
        for importer in sorted(imports):
            for imported in sorted(imports[importer]):
                found += self._edge(importer, imported)
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as cycle:
            found.append("a cycle: " + " -> ".join(reversed(cycle.args[1])))
        return found

    def _unknown(self, file: str) -> bool:
        return room_of(file, self.rooms) is None and not is_bare_package(file, self.rooms)

    def _homeless(self, file: str, imported: set[str]) -> str:
        below = [room.floor for room in (room_of(other, self.rooms) for other in imported) if room is not None]
        lowest = max(below, default=-1) + 1
        return f"{file} has no floor: give it a line in the map, on floor {lowest} or above by what it imports"

    def _edge(self, importer: str, imported: str) -> list[str]:
        above, below = room_of(importer, self.rooms), room_of(imported, self.rooms)
        if below is None or self._unknown(importer):
            return []  # a bare package holds nothing; a file without a floor is a fault already
        if above is None:
            return [f"{importer} holds no code, yet it imports {imported}"]
        if above == below:
            return []
        found = []
        if above.floor <= below.floor:
            found.append(f"{importer} ({above.floor}) imports {imported} ({below.floor}): only lower floors")
        if importer.startswith("adapters/") and not _among(imported, self.adapters_know):
            found.append(
                f"{importer} imports {imported}: an adapter knows core, effects, render, schema, tool, owners, ports"
            )
        shared = importer.startswith("adapters/") and _among(imported, self.adapters_know)
        if importer.startswith("doors/") and importer not in self.names_adapters:
            if not _among(imported, self.doors_know):
                found.append(f"{importer} imports {imported}: a door knows runtime, core and public names")
        elif imported.startswith("adapters/") and importer not in self.names_adapters and not shared:
            found.append(f"{importer} imports {imported}: only {' and '.join(self.names_adapters)} name adapters")
        return found


def _among(file: str, known: tuple[str, ...]) -> bool:
    return any(file.startswith(path) if path.endswith("/") else file == path for path in known)


class Floors(Contract):
    """The contract type `floors` of pyproject.toml."""

    type_name = "floors"

    map = fields.StringField()
    adapters_know = fields.ListField(subfield=fields.StringField())
    doors_know = fields.ListField(subfield=fields.StringField())
    names_adapters = fields.ListField(subfield=fields.StringField())

    @cached_property
    def house(self) -> House:
        options: dict[str, Any] = self.contract_options
        return House(
            rooms=read_map((ROOT / options["map"]).read_text(encoding="utf-8")),
            adapters_know=tuple(options["adapters_know"]),
            doors_know=tuple(options["doors_know"]),
            names_adapters=tuple(options["names_adapters"]),
        )

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        paths = {_module(file): file for file in files()}
        imports = {
            paths[module]: {paths[other] for other in graph.find_modules_directly_imported_by(module) if other in paths}
            for module in graph.modules
            if module in paths
        }
        faults = self.house.faults(imports)
        return ContractCheck(kept=not faults, metadata={"faults": faults})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for fault in check.metadata["faults"]:
            output.print_error(f"- {fault}", bold=False)


def _module(file: str) -> str:
    parts = ["counterfoil", *Path(file).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
