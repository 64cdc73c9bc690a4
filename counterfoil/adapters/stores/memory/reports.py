"""Error reports, in this process."""

from __future__ import annotations

from collections.abc import Iterable

from counterfoil.core.report import ReportGroup, ToolErrorReport, report_from_json
from counterfoil.store import EVERY_REPORT, ReportFilter, needs_tenant


class Reports:
    """The part of the store that holds them."""

    def __init__(self) -> None:
        self._reports: list[ToolErrorReport] = []

    def _add_reports(self, reports: Iterable[ToolErrorReport]) -> None:
        # Kept as text: the exception itself would hold on to every frame that it passed.
        self._reports += [report_from_json(report.to_json()) for report in reports]

    def _erase_reports(self, tenant: str, run_id: str) -> int:
        left = [r for r in self._reports if (r.tenant_id, r.run_id) != (tenant, run_id)]
        erased, self._reports = len(self._reports) - len(left), left
        return erased

    async def reports(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ToolErrorReport]:
        return self._found(tenant, where)[: where.limit]

    async def report_groups(self, tenant: str, where: ReportFilter = EVERY_REPORT) -> list[ReportGroup]:
        times: dict[tuple[str, int | None], list[int]] = {}
        for report in self._found(tenant, where):
            times.setdefault((report.tool_name, report.code), []).append(report.at_us)
        groups = [ReportGroup(*key, len(at), min(at), max(at)) for key, at in times.items()]
        # As SQL sorts them: by the code's text, no code first.
        groups.sort(key=lambda g: (-g.last_us, g.tool_name, "" if g.code is None else str(g.code)))
        return groups[: max(where.limit, 0)]

    def _found(self, tenant: str, where: ReportFilter) -> list[ToolErrorReport]:
        needs_tenant(tenant)
        found = [r for r in reversed(self._reports) if r.tenant_id == tenant and _matches(r, where)]
        return sorted(found, key=lambda report: report.at_us, reverse=True)


def _matches(report: ToolErrorReport, where: ReportFilter) -> bool:
    return (
        where.run_id in (None, report.run_id)
        and where.tool_name in (None, report.tool_name)
        and where.code in (None, report.code)
        and (where.since is None or report.at_us >= where.since)
        and (where.until is None or report.at_us <= where.until)
        and (not where.main or report.thread_id == "main")
    )
