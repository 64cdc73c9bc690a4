"""A run whose older part a model sums up where it does not fit otherwise (contract 6)."""

from __future__ import annotations

import logging

from counterfoil.asking import Asking, Offered
from counterfoil.core.context import CHARS_PER_TOKEN, Fitter
from counterfoil.core.entries import MessageEntry, ResumedEntry, SummaryEntry
from counterfoil.core.errors import Fenced, StoreError
from counterfoil.core.jsontext import clean_text
from counterfoil.core.older import Older, Summing, summaries_for
from counterfoil.core.threads import View
from counterfoil.core.turn import NO_USAGE
from counterfoil.core.words import summary_instructions
from counterfoil.model import ModelRequest, ModelTurn
from counterfoil.prices import counted, priced

log = logging.getLogger("counterfoil")


class Fitting(Asking):
    """A run whose requests fit its context budget."""

    view: View | None
    _fitter: Fitter | None = None

    async def _fit(self, request: ModelRequest, offer: Offered) -> bool:
        """Cut a request to the context budget; False: look at the run again first, since a summary is on record now."""
        fitter = self._fitter
        if fitter is None:
            fitter = self._fitter = self._begin_fitting()
        reserve = (len(request.instructions) + offer.chars) // CHARS_PER_TOKEN
        if isinstance(fitter, Summing):
            older = fitter.older(request.history, reserve)
            if older is not None and await self._sum_up(fitter, older):
                return False
        cut = fitter.fit(request.history, reserve)
        request.history, request.length, request.elided = cut.items, cut.length, cut.elided
        return True

    def _begin_fitting(self) -> Fitter:
        began = [e.entry for e in self.run.log if isinstance(e, ResumedEntry) and e.limits is not None]
        since = began[-1] if began else self.head.entry
        budget, sums = self.run.limits.context_tokens, self.agent.open_summary is not None
        found = summaries_for(self.record, self.run, own=self.view is not None)
        return Summing(budget, since, found, sums=sums) if sums or found else Fitter(budget, since)

    async def _sum_up(self, fitter: Summing, older: Older) -> bool:
        """Have the older part summed up and put that on record; False: it came to nothing, and the run goes on."""
        text = MessageEntry(run_id=self.run.run_id, at=self.effects.now(), text=older.text)
        same = self.agent.open_summary is self.agent.open_model
        asked = ModelRequest(
            summary_instructions(older.words), [text], 1, (), self.run.run_id, self.run.turns,
            parameters=self.agent.parameters if same else {},
        )  # fmt: skip  # two rows
        self._summing = True
        try:
            turn = await self._guarded(asked)
            entry = None if turn is None else self._summary_entry(turn, older)
        except (StoreError, Fenced):
            raise
        except Exception as e:  # noqa: BLE001  # whatever it is, the run can do without
            log.warning("run %s goes on without a summary of what is older: %s", self.run.run_id, e)
            fitter.came_to_nothing()
            return False
        finally:
            self._summing = False
        if entry is None:
            await self.refresh()
            return True
        await self.write([entry])
        fitter.summaries.append(entry)
        return True

    def _summary_entry(self, turn: ModelTurn, older: Older) -> SummaryEntry:
        """The summary as it goes on record. Raises ValueError: it is none."""
        try:
            usage, text = turn.usage, clean_text(turn.text)
            if usage is not NO_USAGE:
                usage = priced(counted(usage), turn.model, self.agent.prices, must=self.run.limits.cost is not None)
            if turn.calls or turn.stop != "end" or not text.strip():
                raise ValueError(f"the model gave none: its answer ended by {turn.stop}")
            if len(text) // CHARS_PER_TOKEN >= older.tokens:
                raise ValueError("the summary is longer than what it sums up")
        except Exception:
            self._discard(turn.model, turn.usage)
            raise
        return SummaryEntry(
            **self._head(), text=text, first=older.first, last=older.last, usage=usage, model=str(turn.model)
        )
